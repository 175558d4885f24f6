"""A sharded model when something goes wrong: exceptions on one rank, signals,
garbage, misuse.  Every wait is bounded, and what follows is an error that says
what happened, or a clean continuation."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
import unittest

import ranks
import torch
import torch_model as tm
from torch import nn

import aliquot
import aliquot.torch as at

torch.set_num_threads(1)


def run_to_the_end(size, body):
    """[result or exception] of all ranks, each leaving its world as a program
    does."""
    def guarded(context):
        try:
            return body(context)
        except Exception as error:
            outcomes[context.rank] = error
            raise

    outcomes = {}
    try:
        results = ranks.run_threads(size, guarded)
    except AssertionError:
        results = [None] * size
    return [outcomes.get(rank, results[rank]) for rank in range(size)]


class Exceptions(unittest.TestCase):
    def fail_on_one(self, prepare, expected=ArithmeticError):
        """Rank 1 fails; rank 0 gets an error in bounded time."""
        for strategy in ("ddp", "fsdp"):
            def body(context):
                model = tm.sharded(context, strategy)
                optimizer = at.AdamW(model.parameters(), lr=tm.LR)
                tm.step(model, optimizer, context.rank, 0)
                if context.rank == 1:
                    prepare(model)
                for number in range(1, 3):
                    tm.step(model, optimizer, context.rank, number)

            with self.subTest(strategy=strategy):
                started = time.monotonic()
                first, second = run_to_the_end(2, body)
                self.assertLess(time.monotonic() - started, 30)
                self.assertIsInstance(second, expected)
                self.assertIsInstance(first, aliquot.Error)
                self.assertIn("rank 1", str(first))

    def test_in_forward(self):
        def prepare(model):
            model.fail_in = 2

        self.fail_on_one(prepare)

    def test_in_a_gradient_hook(self):
        def fail(*_):
            raise ArithmeticError("a hook")

        self.fail_on_one(lambda model: model.blocks[1].register_forward_hook(
            lambda m, a, out: out["hidden"].register_hook(fail) and None))

    def test_in_a_module_hook(self):
        def fail(*_):
            raise ArithmeticError("a hook")

        self.fail_on_one(lambda model: model.blocks[3].mix.
                         register_forward_hook(fail))

    def test_all_ranks_catch_it_in_forward(self):
        """The same on all ranks, caught: the next batch goes on."""
        plain = tm.Plain(2, tm.make())
        plain.step(1)

        def body(context):
            model = tm.sharded(context, gather="copy")
            optimizer = at.AdamW(model.parameters(), lr=tm.LR, betas=tm.BETAS,
                                 weight_decay=tm.DECAY)
            model.fail_in = 2
            with self.assertRaises(ArithmeticError):
                model(tm.tokens(context.rank, 0))
            assert all(unit.entry is None for unit in
                       model._aliquot_runtime.units)
            model.fail_in = None
            tm.step(model, optimizer, context.rank, 1)
            return model.state_dict()

        for state in ranks.run_threads(2, body):
            for name, value in plain.model.state_dict().items():
                self.assertLess((value - state[name]).abs().max(), 1e-11, name)

    def test_backward_that_raised(self):
        """The step is incomplete: said at the next call, with what to do."""
        def body(context):
            model = tm.sharded(context)
            optimizer = at.AdamW(model.parameters(), lr=tm.LR)

            def fail(_):
                raise ArithmeticError("a hook")

            handle = model.blocks[1].register_forward_hook(
                lambda m, a, out: out["hidden"].register_hook(fail) and None)
            # Or the other rank was first, and has left the step already.
            with self.assertRaises((ArithmeticError, aliquot.Aborted)):
                model(tm.tokens(context.rank, 0)).backward()
            handle.remove()
            for call in (lambda: model(tm.tokens(context.rank, 1)),
                         optimizer.step, model.state_dict):
                with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                            "abandon"):
                    call()
            at.abandon(model)
            tm.step(model, optimizer, context.rank, 1)
            return model.state_dict()

        for state in ranks.run_threads(2, body):
            plain = tm.Plain(2, tm.make(), lambda ps: torch.optim.AdamW(
                ps, lr=tm.LR))
            plain.step(1)
            for name, value in plain.model.state_dict().items():
                self.assertLess((value - state[name]).abs().max(), 1e-11)


class Ends(unittest.TestCase):
    def test_two_models_and_garbage(self):
        def body(context):
            first, second = tm.sharded(context), tm.sharded(context, "ddp")
            one = at.AdamW(first.parameters(), lr=tm.LR)
            two = at.SGD(second.parameters(), lr=tm.LR)
            for number in range(2):
                loss = first(tm.tokens(context.rank, number))
                other = second(tm.tokens(context.rank, number))
                loss.backward()
                other.backward()
                two.step()
                one.step()
            weight = first.blocks[0].mix.weight
            del first, second, one, two, loss, other
            gc.collect()
            return weight.sum().item()  # its memory is still there

        for value in ranks.run_threads(2, body):
            self.assertEqual(value, value)

    def test_many_models(self):
        def body(context):
            for number in range(30):
                model = at.shard(nn.Linear(64, 64), "fsdp", context)
                optimizer = at.SGD(model.parameters(), lr=0.1)
                model(torch.ones(2, 64)).sum().backward()
                optimizer.step()
                at.close(model)
                at.close(model)
                with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                            "closed"):
                    model(torch.ones(2, 64))
                del model, optimizer
                gc.collect()
                if number == 9:
                    before = len(os.listdir("/proc/self/fd"))
            return len(os.listdir("/proc/self/fd")) - before

        for more in ranks.run_threads(2, body):
            self.assertLess(more, 20)  # an engine has 4 in two ranks

    def test_deep_copies_are_ordinary_models(self):
        """As for a moving average of the weights."""
        def body(context):
            model = tm.sharded(context, "ddp", lend_from=1)
            optimizer = at.AdamW(model.parameters(), lr=tm.LR)
            tm.step(model, optimizer, context.rank, 0)
            twin = copy.deepcopy(model)
            batch = tm.tokens(context.rank, 5)
            with torch.no_grad():
                expect = model(batch)
            tm.step(model, optimizer, context.rank, 1)
            if context.rank == 0:  # it needs no peers
                loss = twin(batch)
                assert torch.equal(loss, expect)
                loss.backward()
                assert twin.blocks[0].mix.weight.grad.abs().sum() > 0
            tm.step(model, optimizer, context.rank, 2)
            with self.assertRaisesRegex(TypeError, "state_dict"):
                pickle.dumps(model._aliquot_runtime)

        ranks.run_threads(2, body)

    def test_interrupt_in_forward(self):
        """KeyboardInterrupt between two modules leaves no unit half open."""
        def body(context):
            model = tm.sharded(context, gather="copy")
            optimizer = at.AdamW(model.parameters(), lr=tm.LR)

            def interrupt(*_):
                raise KeyboardInterrupt

            handle = model.blocks[1].mix.register_forward_hook(interrupt)
            with self.assertRaises(KeyboardInterrupt):
                model(tm.tokens(context.rank, 0))
            handle.remove()
            assert not any(unit.entry or unit.shown for unit in
                           model._aliquot_runtime.units)
            tm.step(model, optimizer, context.rank, 1)

        ranks.run_threads(2, body)

    def test_exit_with_a_live_model(self):
        code = (
            "import torch, aliquot.torch as at\n"
            "m = at.shard(torch.nn.Sequential(torch.nn.Linear(4, 4),\n"
            "    torch.nn.Linear(4, 4)), 'fsdp', units=[torch.nn.Linear])\n"
            "o = at.AdamW(m.parameters())\n"
            "m(torch.ones(1, 4)).sum().backward(); o.step()\n"
            "loss = m(torch.ones(1, 4)).sum()\n"
            "m.cycle = [m, o]\n"
            "print('end')\n")
        run = subprocess.run(
            [sys.executable, "-B", "-c", code], timeout=120, text=True,
            env={**os.environ, "PYTHONPATH": os.path.join(
                ranks.ROOT, "bindings", "python")},
            capture_output=True, check=False)
        self.assertEqual((run.returncode, run.stdout), (0, "end\n"),
                         run.stderr)
        self.assertNotIn("rror", run.stderr)


def train_until_interrupted():
    model = at.shard(tm.make(), "fsdp", units=[tm.Block], gather="copy")
    optimizer = at.AdamW(model.parameters())
    rank = at.default_context().rank
    number = 0
    while number < 100000:
        tm.step(model, optimizer, rank, number % 50)
        number += 1
        if number == 5:
            print("running", flush=True)
        if number == 20 and rank == 1 and os.environ.get("TEST_STALL"):
            time.sleep(3600)


class Signals(unittest.TestCase):
    def test_interrupt_of_one_rank(self):
        """A rank that waits for a stalled peer inside the engine."""
        with ranks.Processes(2, "train_until_interrupted",
                             TEST_STALL="1") as run:
            for rank in range(2):
                self.assertEqual(run.line(rank), "running")
            time.sleep(1)
            started = time.monotonic()
            run.ranks[0].send_signal(signal.SIGINT)
            text, _ = run.ranks[0].communicate(timeout=30)
            self.assertLess(time.monotonic() - started, 15)
            self.assertIn("KeyboardInterrupt", text)

    def test_interrupt_of_all(self):
        with ranks.Processes(2, "train_until_interrupted") as run:
            for rank in range(2):
                self.assertEqual(run.line(rank), "running")
            for process in run.ranks:
                process.send_signal(signal.SIGINT)
            for status, text in run.outcomes(30):
                self.assertNotEqual(status, 0)
                self.assertIn("KeyboardInterrupt", text)


if __name__ == "__main__":
    ranks.main(globals())

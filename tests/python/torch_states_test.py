"""State dicts, first values, and the world of a program that names none."""

import copy
import io
import os
import unittest

import ranks
import torch
import torch_model as tm
from torch import nn

import aliquot
import aliquot.torch as at

STRATEGIES = ("ddp", "zero1", "zero2", "fsdp")
torch.set_num_threads(1)


def sharded(context, strategy="fsdp", model=None, **options):
    return at.shard(copy.deepcopy(model or tm.make()), strategy, context,
                    [tm.Block], poison=True, **options)


def adamw(model):
    return at.AdamW(tm.trainable(model), lr=tm.LR, betas=tm.BETAS,
                    weight_decay=tm.DECAY)


def train(model, optimizer, rank, first, last):
    for step in range(first, last):
        model(tm.tokens(rank, step)).backward()
        optimizer.step()


class States(unittest.TestCase):
    def same(self, one, two, tolerance=0.0):
        self.assertEqual(set(one), set(two))
        for name, value in one.items():
            self.assertLessEqual((value - two[name]).abs().max().item(),
                                 tolerance, name)

    def plain(self, steps):
        plain = tm.Plain(2, tm.make())
        for step in range(steps):
            plain.step(step)
        return plain

    def test_full_states_are_torchs(self):
        """Saved here, loaded by plain torch, and back; equal after more."""
        plain = self.plain(2)
        for strategy in STRATEGIES:
            def body(context):
                model = sharded(context, strategy)
                optimizer = adamw(model)
                train(model, optimizer, context.rank, 0, 2)
                file = io.BytesIO()
                torch.save((model.state_dict(), optimizer.state_dict()), file)
                return file.getvalue()

            with self.subTest(strategy=strategy):
                first, second = ranks.run_threads(2, body)
                state, optimizer_state = torch.load(io.BytesIO(first))
                self.same(state, plain.model.state_dict(), 1e-11)
                again = tm.Plain(2, tm.Model())
                again.model.load_state_dict(state)
                again.optimizer.load_state_dict(optimizer_state)
                more = copy.deepcopy(plain)
                for step in range(2, 4):
                    again.step(step)
                    more.step(step)
                self.same(again.model.state_dict(), more.model.state_dict(),
                          1e-11)

    def test_resume(self):
        """From a plain checkpoint, under every strategy."""
        plain = self.plain(2)
        saved = copy.deepcopy((plain.model.state_dict(),
                               plain.optimizer.state_dict()))
        for step in range(2, 4):
            plain.step(step)
        for strategy in STRATEGIES:
            def body(context):
                model = sharded(context, strategy)
                optimizer = adamw(model)
                train(model, optimizer, context.rank, 7, 8)
                report = model.load_state_dict(saved[0])
                assert not report.missing_keys and not report.unexpected_keys
                optimizer.load_state_dict(saved[1])
                train(model, optimizer, context.rank, 2, 4)
                return model.state_dict()

            with self.subTest(strategy=strategy):
                for state in ranks.run_threads(2, body):
                    self.same(state, plain.model.state_dict(), 1e-11)

    def test_sgd_resumes(self):
        options = dict(lr=0.05, momentum=0.9)
        plain = tm.Plain(2, tm.make(),
                         lambda ps: torch.optim.SGD(ps, **options))
        for step in range(2):
            plain.step(step)
        saved = copy.deepcopy((plain.model.state_dict(),
                               plain.optimizer.state_dict()))
        plain.step(2)

        def body(context):
            model = sharded(context)
            optimizer = at.SGD(model.parameters(), **options)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            train(model, optimizer, context.rank, 2, 3)
            names = set(optimizer.state_dict()["state"][0])
            assert names == {"momentum_buffer"}, names
            return model.state_dict()

        for state in ranks.run_threads(2, body):
            self.same(state, plain.model.state_dict(), 1e-11)

    def test_sharded_states_reshard(self):
        """Saved by 4 ranks of fsdp, loaded by 1, 2 and 3 of others."""
        def save(context):
            model = sharded(context)
            optimizer = adamw(model)
            train(model, optimizer, context.rank % 2, 0, 2)
            file = io.BytesIO()
            torch.save(at.sharded_state_dict(model), file)
            optimizer.zero_grad()
            train(model, optimizer, context.rank % 2, 2, 3)
            return file.getvalue(), model.state_dict()

        saved = ranks.run_threads(4, save)
        pieces = [torch.load(io.BytesIO(text)) for text, _ in saved]
        largest = max(part.numel() for entry in pieces[0]["params"].values()
                      for part in entry["parts"].values())
        self.assertLess(largest, tm.DIM * 2 * tm.DIM)
        for size, strategy in ((2, "zero1"), (2, "fsdp"), (4, "zero2"),
                               (4, "fsdp"), (2, "ddp")):
            def load(context):
                model = sharded(context, strategy)
                optimizer = adamw(model)
                at.load_sharded_state_dict(
                    model, pieces[context.rank] if size == 4 and
                    strategy == "fsdp" else pieces)
                train(model, optimizer, context.rank % 2, 2, 3)
                return model.state_dict()

            with self.subTest(size=size, strategy=strategy):
                for state in ranks.run_threads(size, load):
                    self.same(state, saved[0][1], 1e-12)

        def incomplete(context):
            model = sharded(context, "ddp")
            adamw(model)
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "pass the dicts of all ranks"):
                at.load_sharded_state_dict(model, pieces[:2])

        ranks.run_threads(2, incomplete)

    def test_wrong_states(self):
        def body(context):
            model = sharded(context)
            adamw(model)
            state = model.state_dict()
            state["norm.weight"] = torch.zeros(3)
            with self.assertRaisesRegex(RuntimeError, "size mismatch for norm"):
                model.load_state_dict(state)
            del state["norm.weight"]
            with self.assertRaisesRegex(RuntimeError, "Missing key"):
                model.load_state_dict(state)
            model.load_state_dict(state, strict=False)

        ranks.run_threads(2, body)

    def test_nested_in_another_module(self):
        def body(context):
            outer = nn.Module()
            outer.inner = sharded(context, model=tm.make())
            adamw(outer.inner)
            state = outer.state_dict()
            assert state["inner.embed.weight"].shape == (tm.VOCAB, tm.DIM)
            state["inner.norm.weight"] = torch.full((tm.DIM,), 2.5)
            outer.load_state_dict(state)
            return outer.inner.state_dict()["norm.weight"]

        for value in ranks.run_threads(2, body):
            self.assertTrue(torch.equal(value, torch.full(
                (tm.DIM,), 2.5, dtype=torch.float64)))

    def test_unshard(self):
        plain = self.plain(2)

        def body(context):
            model = sharded(context)
            train(model, adamw(model), context.rank, 0, 2)
            assert at.unshard(model) is model
            loss = model(tm.tokens(5, 5))
            loss.backward()
            assert type(model._parameters) is dict
            assert model.embed.weight is model.head.weight
            assert model.embed.weight.grad.shape == (tm.VOCAB, tm.DIM)
            return loss.item(), copy.deepcopy(model).state_dict()

        expect = plain.model(tm.tokens(5, 5)).item()
        for loss, state in ranks.run_threads(2, body):
            self.assertAlmostEqual(loss, expect, delta=1e-12)
            self.same(state, plain.model.state_dict(), 1e-11)


class FirstValues(unittest.TestCase):
    def test_meta_device(self):
        """Materialised unit by unit, equal to the model built as usual."""
        expect = tm.make(rank=2).state_dict()
        for strategy in STRATEGIES:
            def body(context):
                alive, most = [0], [0]

                def init(module):
                    tm.fill(module)
                    alive[0] = sum(
                        p.numel() for p in model.parameters()
                        if p is not None and p.device.type == "cpu" and
                        p.numel() > 1)
                    most[0] = max(most[0], alive[0])

                model = tm.Model(rank=2, device="meta")
                total = sum(p.numel() for p in model.parameters())
                at.shard(model, strategy, context, [tm.Block], init=init,
                         poison=True)
                optimizer = adamw(model)
                assert most[0] < total / 2, (most, total)
                state = model.state_dict()
                model(tm.tokens(context.rank, 0)).backward()
                optimizer.step()
                return state

            with self.subTest(strategy=strategy):
                for state in ranks.run_threads(2, body):
                    self.assertEqual(set(state), set(expect))
                    for name, value in state.items():
                        self.assertTrue(torch.equal(value, expect[name]), name)

    def test_meta_by_reset_parameters(self):
        def body(context):
            with torch.device("meta"):
                model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)),
                                      nn.BatchNorm1d(6))
            at.shard(model, "fsdp", context, [nn.Linear])
            at.SGD(model.parameters(), lr=0.1)
            state = model.state_dict()
            assert state["3.running_var"].device.type == "cpu"
            return state

        one, two = ranks.run_threads(2, body)
        for name, value in one.items():
            self.assertTrue(torch.equal(value, two[name]), name)
            if "weight" in name and name[0] != "3":
                self.assertGreater(value.std(), 0.1)

        def refused(context):
            model = tm.Model(device="meta")
            model.blocks[0].extra = nn.Parameter(torch.empty(2, device="meta"))
            at.shard(model, "fsdp", context, [tm.Block])
            with self.assertRaisesRegex(ValueError, "give shard.. init="):
                at.commit(model)

        ranks.run_threads(1, refused)

    def test_ranks_begin_with_the_first_ranks_values(self):
        def body(context):
            model = tm.make()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(context.rank)
                model.blocks[0].scale.fill_(context.rank + 3)
            at.shard(model, "ddp", context, [tm.Block])
            at.commit(model)
            return model.state_dict()

        expect = tm.make().state_dict()
        for state in ranks.run_threads(2, body):
            self.assertEqual(state["blocks.0.scale"], 3)
            for name in ("embed.weight", "blocks.3.out.weight"):
                self.assertTrue(torch.equal(state[name], expect[name]))

    def test_old_parameters_are_not_kept(self):
        def body(context):
            model = tm.make()
            old = model.embed.weight
            at.shard(model, "fsdp", context, [tm.Block])
            adamw(model)
            assert old.numel() == 0
            with self.assertRaisesRegex(ValueError, "shard.model. first"):
                at.AdamW(tm.make().parameters())
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "has an optimizer"):
                adamw(model)
            with self.assertRaisesRegex(ValueError, "sharded already"):
                at.shard(model, "fsdp", context)

        ranks.run_threads(2, body)

    def test_optimizer_after_the_first_forward(self):
        plain = tm.Plain(2, tm.make())
        plain.step(0)

        def body(context):
            model = sharded(context)
            with torch.no_grad():
                model(tm.tokens(3, 3))
            train(model, adamw(model), context.rank, 0, 1)
            return model.state_dict()

        for state in ranks.run_threads(2, body):
            for name, value in plain.model.state_dict().items():
                self.assertLess((value - state[name]).abs().max(), 1e-11)


def train_by_environment():
    """The loop of the package's documentation, with the default world."""
    model = at.shard(tm.make(), "fsdp", units=[tm.Block])
    optimizer = adamw(model)
    rank = at.default_context().rank
    for step in range(3):
        loss = model(tm.tokens(rank, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)


class Processes(unittest.TestCase):
    def test_default_world(self):
        plain = tm.Plain(2, tm.make())
        expect = [plain.step(step)[0] for step in range(3)]
        with ranks.Processes(2, "train_by_environment") as run:
            for rank, (status, text) in enumerate(run.outcomes()):
                self.assertEqual(status, 0, text)
                losses = [float(line.split()[1])
                          for line in text.splitlines()]
                for got, want in zip(losses, expect):
                    self.assertAlmostEqual(got, want[rank][0], delta=1e-13)
        self.assertNotIn("LD_PRELOAD", os.environ)


if __name__ == "__main__":
    ranks.main(globals())

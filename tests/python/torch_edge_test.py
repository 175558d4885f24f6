"""What loops do to a sharded model that is not in its manual: gradients changed
in every way that tensors offer, parts and copies of the model saved, parameters
frozen meanwhile.  The same is done to plain PyTorch, which is the oracle."""

import copy
import math
import pickle
import unittest

import ranks
import torch
import torch_model as tm
from torch import nn

import aliquot
import aliquot.torch as at

torch.set_num_threads(1)


def each(change):
    def touch(model):
        for param in model.parameters():
            change(param)
    return touch


def assign(param):
    param.grad = param.grad.clone() * 0.5


def old_clip(model):
    total = math.sqrt(sum(p.grad.data.norm(2).item() ** 2
                          for p in model.parameters()))
    for param in model.parameters():
        param.grad.detach().mul_(0.05 / total)


TOUCHES = {
    "data": each(lambda p: p.grad.data.mul_(0.5)),
    "view": each(lambda p: p.grad.view(-1).mul_(0.5)),
    "numpy": each(lambda p: p.grad.numpy().__imul__(0.5)),
    "add": each(lambda p: p.grad.add_(p.detach(), alpha=0.1)),
    "copy": each(lambda p: p.grad.copy_(p.grad.clone() * 0.5)),
    "square": each(lambda p: p.grad.mul_(p.grad)),
    "out": each(lambda p: torch.mul(p.grad, 0.5, out=p.grad)),
    "assigned": each(assign),
    "masked": each(lambda p: p.grad.masked_fill_(p.grad > 0, 0.0)),
    "list": lambda m: torch._foreach_add_(
        [p.grad for p in m.parameters()],
        [p.detach() for p in m.parameters()], alpha=0.1),
    "clip value": lambda m: nn.utils.clip_grad_value_(
        m.parameters(), 0.005, foreach=True),
    "clip by hand": old_clip,
}


class Gradients(unittest.TestCase):
    def compare(self, strategy, touch, size=2, **options):
        plain = tm.make()
        sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
        norms = []
        for number in range(2):
            for rank in range(size):
                (plain(tm.tokens(rank, number)) / size).backward()
            touch(plain)
            norms.append(nn.utils.get_total_norm(
                [p.grad for p in plain.parameters()]).item())
            sgd.step()
            sgd.zero_grad()

        def body(context):
            model = tm.sharded(context, strategy, **options)
            torchs = "optimizer" in options
            kind = torch.optim.SGD if torchs else at.SGD
            optimizer = kind(model.parameters(), lr=0.1)
            found = []
            for number in range(2):
                model(tm.tokens(context.rank, number)).backward()
                touch(model)
                optimizer.step()
                found.append(None if torchs else optimizer.grad_norm)
            return model.state_dict(), found

        for state, found in ranks.run_threads(size, body):
            for name, value in plain.state_dict().items():
                self.assertLess((value - state[name]).abs().max(), 1e-12, name)
            for norm, want in zip(found, norms):
                if norm is not None:
                    self.assertAlmostEqual(norm, want, delta=1e-12)

    def test_what_the_caller_leaves_is_what_the_step_takes(self):
        for strategy, options in (("ddp", {}), ("zero2", {}), ("fsdp", {}),
                                  ("fsdp", dict(optimizer="torch"))):
            for name, touch in TOUCHES.items():
                with self.subTest(strategy=strategy, touch=name, **options):
                    self.compare(strategy, touch, **options)
        self.compare("fsdp", TOUCHES["view"], 3)

    def test_nan_through_a_view_skips_the_step(self):
        def body(context):
            model = tm.sharded(context)
            optimizer = at.AdamW(model.parameters())
            before = model.state_dict()
            model(tm.tokens(context.rank, 0)).backward()
            for param in model.parameters():
                view = param.grad.numpy()  # on all ranks
                if context.rank == 1:
                    view[:1] = math.nan
            optimizer.step()
            assert optimizer.skipped
            for name, value in model.state_dict().items():
                assert torch.equal(value, before[name])

        ranks.run_threads(2, body)

    def test_gradients_that_are_gone(self):
        def body(context):
            model = tm.sharded(context)
            optimizer = at.AdamW(model.parameters())
            before = model.state_dict()
            model(tm.tokens(context.rank, 0)).backward()
            for param in model.parameters():
                param.grad = None
            optimizer.step()  # nothing is left of it
            for name, value in model.state_dict().items():
                assert torch.equal(value, before[name])
            model(tm.tokens(context.rank, 0)).backward()
            model.norm.weight.grad = None
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "norm.weight was set to None"):
                optimizer.step()

        ranks.run_threads(2, body)

    def test_grad_scaler(self):
        def body(context):
            model = tm.sharded(context)
            optimizer = at.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            scales = []
            for bad in (False, True):
                loss = scaler.scale(model(tm.tokens(context.rank, 0)))
                loss.backward()
                for param in model.parameters():
                    view = param.grad.numpy()
                    if bad and context.rank == 1:
                        view[:1] = math.inf
                scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
                optimizer.zero_grad()
                if not bad:
                    assert abs(norm.item() - optimizer.grad_norm) < 1e-12
            return scales, model.state_dict()["norm.weight"]

        plain = tm.Plain(2, tm.make(), lambda ps: torch.optim.SGD(ps, lr=0.1))
        plain.step(0)
        for scales, value in ranks.run_threads(2, body):
            self.assertEqual(scales, [8.0, 4.0])
            self.assertLess((value - plain.model.norm.weight).abs().max(),
                            1e-12)


class Parts(unittest.TestCase):
    def test_copies_and_parts_have_states_of_their_own(self):
        def body(context):
            model = tm.sharded(context, "ddp")
            optimizer = at.AdamW(model.parameters(), lr=tm.LR)
            tm.step(model, optimizer, context.rank, 0)
            twin = copy.deepcopy(model)
            kept = twin.norm.weight.detach().clone()
            tm.step(model, optimizer, context.rank, 1)
            assert torch.equal(twin.state_dict()["norm.weight"], kept)
            twin.load_state_dict({k: torch.zeros_like(v) for k, v in
                                  twin.state_dict().items()})
            assert model.state_dict()["norm.weight"].abs().sum() > 0
            with self.assertRaisesRegex(TypeError, "state_dict"):
                pickle.dumps(model)

            model = tm.sharded(context)
            at.commit(model)
            part = tm.make().blocks[1].state_dict()
            for name, value in model.blocks[1].state_dict().items():
                assert torch.equal(value, part[name]), name
            part["mix.weight"] = torch.full_like(part["mix.weight"], 2.5)
            model.blocks[1].load_state_dict(part)
            assert (model.state_dict()["blocks.1.mix.weight"] == 2.5).all()

        ranks.run_threads(2, body)

    def test_a_module_that_has_two_names(self):
        def make():
            plain = tm.make()
            plain.blocks.append(plain.blocks[0])
            return plain

        def body(context):
            model = at.shard(make(), "fsdp", context, [tm.Block])
            at.commit(model)
            state = model.state_dict()
            for name, value in make().state_dict().items():
                assert torch.equal(state[name], value), name
            first, again = (state["blocks.%d.mix.weight" % i]
                            for i in (0, tm.LAYERS))
            assert first is again
            model.load_state_dict(state)

        ranks.run_threads(2, body)

    def test_optimizer_states_that_do_not_fit(self):
        def body(context):
            model = tm.sharded(context)
            optimizer = at.AdamW(model.parameters(), lr=tm.LR)
            tm.step(model, optimizer, context.rank, 0)
            saved = optimizer.state_dict()
            saved["state"][0]["exp_avg"] = torch.zeros(3)
            with self.assertRaisesRegex(ValueError, "exp_avg of parameter"):
                optimizer.load_state_dict(saved)
            saved["state"] = {}  # before its first step
            optimizer.load_state_dict(saved)
            tm.step(model, optimizer, context.rank, 1)
            state = optimizer.state_dict()["state"][0]
            assert state["step"] == 1
            return state["exp_avg"]

        plain = tm.Plain(2, tm.make(), lambda ps: torch.optim.AdamW(
            ps, lr=tm.LR))
        plain.step(0)
        plain.optimizer = torch.optim.AdamW(plain.model.parameters())
        plain.step(1)
        first = next(plain.model.parameters())
        want = plain.optimizer.state[first]["exp_avg"]
        for value in ranks.run_threads(2, body):
            self.assertLess((value - want).abs().max(), 1e-12)


class Uses(unittest.TestCase):
    def test_frozen_meanwhile(self):
        def train(model, optimizer, backward):
            for number in range(3):
                for param in model.blocks[1].parameters():
                    param.requires_grad_(number != 1)
                backward(model, number)
                optimizer.step()
                optimizer.zero_grad()
            return model.state_dict()

        def both(model, number):
            for rank in range(2):
                (model(tm.tokens(rank, number)) / 2).backward()

        plain = tm.make()
        want = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), both)
        for strategy in ("ddp", "fsdp"):
            def body(context):
                model = tm.sharded(context, strategy)
                optimizer = at.SGD(model.parameters(), lr=0.1)
                state = train(model, optimizer, lambda m, n: m(
                    tm.tokens(context.rank, n)).backward())
                model = tm.sharded(context, strategy)
                optimizer = at.AdamW(model.parameters())
                at.commit(model).norm.weight.requires_grad_(False)
                model(tm.tokens(context.rank, 0)).backward()
                with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                            "norm.weight was frozen after"):
                    optimizer.step()
                return state

            for state in ranks.run_threads(2, body):
                for name, value in want.items():
                    self.assertLess((value - state[name]).abs().max(), 1e-12)

    def test_penalties(self):
        """On a weight that is written in place; before and after the call."""
        def loss_of(model, rank, early):
            weight = model.blocks[0].mix.weight if early else None
            loss = model(tm.tokens(rank, 0))
            if weight is None:
                weight = model.blocks[0].mix.weight
            return loss + weight.square().sum()

        for strategy, early in (("ddp", True), ("ddp", False),
                                ("fsdp", False)):
            plain = tm.make()
            for rank in range(2):
                (loss_of(plain, rank, early) / 2).backward()
            torch.optim.SGD(plain.parameters(), lr=0.1).step()

            def body(context):
                model = tm.sharded(context, strategy, lend_from=1)
                optimizer = at.SGD(model.parameters(), lr=0.1)
                loss_of(model, context.rank, early).backward()
                optimizer.step()
                return model.state_dict()

            for state in ranks.run_threads(2, body):
                for name, value in plain.state_dict().items():
                    self.assertLess((value - state[name]).abs().max(), 1e-12)

    def test_a_part_of_a_parameter_in_the_loss_is_refused(self):
        def body(context):
            model = at.commit(tm.sharded(context))
            loss = model.blocks[0].mix.weight.square().sum()
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "blocks.0.mix.weight as it lies"):
                loss.backward()

        ranks.run_threads(2, body)

    def test_functional_call(self):
        def body(context):
            model = tm.sharded(context)
            optimizer = at.SGD(model.parameters(), lr=0.1)
            other = tm.make()
            with torch.no_grad():
                for value in other.parameters():
                    value.mul_(0.5)
            batch = tm.tokens(context.rank, 0)
            found = torch.func.functional_call(
                model, dict(other.named_parameters()), (batch,))
            assert abs(found - other(batch)).item() < 1e-13
            at.abandon(model)
            tm.step(model, optimizer, context.rank, 0)

        ranks.run_threads(2, body)

    def test_arguments(self):
        with self.assertRaisesRegex(ValueError, "one backward at least"):
            at.shard(tm.make(), microbatches=0)

        def body(context):
            with self.assertRaisesRegex(ValueError, "no module of the model"):
                at.shard(tm.make(), "fsdp", context, [nn.Linear(2, 2)])

        ranks.run_threads(1, body)


if __name__ == "__main__":
    ranks.main(globals())

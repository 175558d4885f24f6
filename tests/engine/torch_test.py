"""Eight situations of a PyTorch loop, each as it would run without the engine.

Usage: torch_test.py LIBRARY [unittest options]
"""

import sys
import unittest

import host
import numpy as np
import numpy_gpt as gpt
import torch
from host import _ffi
from torch_adapter import Adapter
from torch_gpt import Gpt

LIBRARY = host.Library(sys.argv[1])
RANKS, STEPS = 2, 5
LR, DECAY = 0.01, 0.1
PLANS = {
    "copy": dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_COPY),
    "map": dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_MAP),
    "ddp": dict(strategy=_ffi.ALQ_STRATEGY_DDP)}
torch.set_num_threads(1)


def tokens(rank, step, micro):
    rng = np.random.default_rng([rank, step, micro])
    return rng.integers(0, gpt.VOCAB, (1 + (rank + micro) % 3, gpt.SEQ + 1))


def weight_of(batch):
    return float(batch.shape[0] * (batch.shape[1] - 1))


class Plain:
    """All ranks' data in one process, without the engine."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=LR,
            betas=(host.ADAMW["beta1"], host.ADAMW["beta2"]),
            eps=host.ADAMW["eps"], weight_decay=DECAY)

    def step(self, step, micros):
        """Losses [rank][microbatch]."""
        total, losses = 0.0, []
        for rank in range(RANKS):
            losses.append([])
            for micro in range(micros):
                batch = tokens(rank, step, micro)
                loss = self.model(batch)
                (loss * weight_of(batch)).backward()
                total += weight_of(batch)
                losses[-1].append(loss.item())
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.grad /= total
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses


def plain_losses(micros=1, **variant):
    plain = Plain(Gpt(**variant))
    return [plain.step(step, micros) for step in range(STEPS)]


def train_step(model, adapter, rank, step, micros):
    losses = []
    for micro in range(micros):
        batch = tokens(rank, step, micro)
        scale = adapter.begin(_ffi.ALQ_TRAIN, weight_of(batch),
                              micro == micros - 1)
        loss = model(batch)
        (loss * scale).backward()
        adapter.engine.microbatch_end()
        losses.append(loss.item())
    adapter.engine.step(LR, DECAY)
    return losses


def evaluate(model, adapter, batch):
    adapter.begin(_ffi.ALQ_EVAL)
    with torch.no_grad():
        loss = model(batch).item()
    adapter.engine.microbatch_end()
    return loss


def generate(model, count):
    """The model's own greedy continuation of one token."""
    text = torch.tensor([[3]])
    with torch.no_grad():
        while text.shape[1] <= count:
            best = model.logits(text)[:, -1].argmax(-1, keepdim=True)
            text = torch.cat([text, best], 1)
    return text[0].tolist()


class Situations(unittest.TestCase):
    def run_plans(self, body, plans=PLANS, **more):
        """body(world, plan) -> losses [step][microbatch], on every plan."""
        for name in plans:
            with self.subTest(plan=name):
                yield host.run_ranks(
                    LIBRARY, RANKS,
                    lambda world: body(world, {**PLANS[name], **more}))

    def train(self, flat=False, micros=1, variant=None, **more):
        variant = variant or {}

        def body(world, plan):
            model = Gpt(**variant)
            units = model.units_flat() if flat else model.units_with_root()
            adapter = Adapter(world, units, microbatches=micros, **plan)
            losses = [train_step(model, adapter, world.rank, step, micros)
                      for step in range(STEPS)]
            adapter.engine.close()
            return losses

        expect = plain_losses(micros, **variant)
        for results in self.run_plans(body, **more):
            self.same(results, expect)

    def same(self, results, expect):
        for rank, losses in enumerate(results):
            np.testing.assert_allclose(
                losses, [step[rank] for step in expect[:len(losses)]],
                rtol=1e-13)

    def test_same_model_as_numpy(self):
        memory, model = gpt.PlainHost(gpt.initial()), Gpt()
        batch = tokens(0, 0, 2)
        loss = model(batch)
        (loss * 3).backward()
        self.assertAlmostEqual(gpt.microbatch(memory, batch, 3), loss.item(),
                               delta=1e-13)
        np.testing.assert_allclose(memory.grads[0][0], model.embed.weight.grad,
                                   atol=1e-13)
        for grads, module in zip(memory.grads[1:], model.blocks):
            for grad, (name, _) in zip(grads, gpt.BLOCK):
                np.testing.assert_allclose(
                    grad, getattr(module, name).weight.grad, atol=1e-13)

    def test_plain_loop(self):
        self.train()
        self.train(flat=True, variant=dict(tied=False))

    def test_accumulation(self):
        self.train(micros=3)
        self.train(micros=3, defer=_ffi.ALQ_DEFER_LAST)

    def test_checkpointing(self):
        for how in ("reentrant", "graph"):
            with self.subTest(how=how):
                self.train(variant=dict(how=how))

    def test_lora(self):
        self.train(variant=dict(rank=2))
        self.train(variant=dict(rank=2, how="graph"), micros=2)

    def test_tied_across_units(self):
        self.train(flat=True)

    def test_exception_in_forward(self):
        expect = plain_losses()

        def body(world, plan):
            model = Gpt()
            adapter = Adapter(world, model.units_with_root(), **plan)
            train_step(model, adapter, world.rank, 0, 1)
            model.fail_in = 2
            with self.assertRaises(ArithmeticError):
                train_step(model, adapter, world.rank, 1, 1)
            with self.assertRaisesRegex(host.Refused, "microbatch is running"):
                adapter.begin(_ffi.ALQ_TRAIN)
            with self.assertRaisesRegex(host.Refused, "microbatch is running|"
                                        "without a last"):
                adapter.engine.step(LR)
            adapter.engine.close()
            with self.assertRaisesRegex(host.Refused, "not a live engine"):
                adapter.begin(_ffi.ALQ_TRAIN)
            # The context and the mesh serve another engine.
            model = Gpt()
            adapter = Adapter(world, model.units_with_root(), **plan)
            losses = [train_step(model, adapter, world.rank, step, 1)
                      for step in range(STEPS)]
            adapter.engine.close()
            return losses

        for results in self.run_plans(body):
            self.same(results, expect)

    def test_eval_in_between(self):
        plain, expect = Plain(Gpt()), []
        held_out = tokens(9, 0, 2)
        for step in range(STEPS):
            losses = plain.step(step, 2)
            with torch.no_grad():
                check = plain.model(held_out).item()
            expect.append([mine + [check] for mine in losses])

        def body(world, plan):
            model, losses = Gpt(), []
            adapter = Adapter(world, model.units_with_root(), microbatches=2,
                              **plan)
            for step in range(STEPS):
                losses.append(train_step(model, adapter, world.rank, step, 2))
                losses[-1].append(evaluate(model, adapter, held_out))
            adapter.engine.close()
            return losses

        for results in self.run_plans(body):
            self.same(results, expect)

    def test_generation(self):
        plain, expect, texts = Plain(Gpt()), [], []
        lengths = (1, 4)
        for step in range(STEPS):
            expect.append(plain.step(step, 1))
            texts.append([generate(plain.model, n) for n in lengths])

        def body(world, plan):
            model, losses = Gpt(), []
            adapter = Adapter(world, model.units_with_root(), **plan)
            for step in range(STEPS):
                losses.append(train_step(model, adapter, world.rank, step, 1))
                adapter.engine.call("alq_unit_hold", _ffi.ALQ_UNIT_ALL)
                adapter.begin(_ffi.ALQ_EVAL)
                text = generate(model, lengths[world.rank])
                adapter.engine.microbatch_end()
                adapter.engine.call("alq_unit_unhold", _ffi.ALQ_UNIT_ALL)
                assert text == texts[step][world.rank], text
                evaluate(model, adapter, tokens(9, 0, 2))
            adapter.engine.close()
            return losses

        phases = _ffi.ALQ_PHASE_TRAIN | _ffi.ALQ_PHASE_EVAL
        for results in self.run_plans(
                body, phases=phases | _ffi.ALQ_PHASE_HOLD_ALL):
            self.same(results, expect)
        with self.assertRaisesRegex(AssertionError, "ALQ_PHASE_HOLD_ALL"):
            host.run_ranks(LIBRARY, RANKS,
                           lambda world: body(world, PLANS["copy"]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])

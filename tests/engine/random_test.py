"""Thousands of random legal sequences on a real engine of 2 ranks.

Each step draws microbatches, skipped units, recomputes, passes that never end,
second backwards, pushed and lent gradients, and gradients that never come; all
ranks draw the same.  After each step the gradients equal a sum done by hand,
every parameter read equals what was written, and every pointer is the unit's
first.  Freed memory is filled with NaN.
"""

import ctypes
import random
import sys
import unittest

import host
from host import _ffi

UNITS, COUNT, RANKS = 5, 3, 2
F, F_NOGRAD, R, B = (_ffi.ALQ_PASS_F, _ffi.ALQ_PASS_F_NOGRAD, _ffi.ALQ_PASS_R,
                     _ffi.ALQ_PASS_B)
PLANS = [
    dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_COPY,
         max_open=UNITS),
    dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_COPY,
         max_open=UNITS, prefetch=-1, defer=_ffi.ALQ_DEFER_LAST),
    dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_MAP,
         max_open=UNITS),
    dict(strategy=_ffi.ALQ_STRATEGY_ZERO2, max_open=UNITS),
    dict(strategy=_ffi.ALQ_STRATEGY_ZERO1, max_open=UNITS),
    dict(strategy=_ffi.ALQ_STRATEGY_DDP, max_open=UNITS),
    # Units placed by themselves, and both ranks replicas that divide states.
    dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_COPY,
         max_open=UNITS, places={0: (0, 0, 0), 2: (0, 0, 1), 3: (0, 1, 1)}),
    dict(strategy=_ffi.ALQ_STRATEGY_HSDP, gather=_ffi.ALQ_GATHER_COPY,
         max_open=UNITS, defer=_ffi.ALQ_DEFER_EACH, mesh="dp_replicate=2",
         places={0: (0, 0, 2), 1: (0, 2, 2), 2: (2, 2, 2), 3: (2, 2, 2)}),
]
# Streams that run by themselves take their time.
SEQUENCES = (160 if host.ON_CUDA else 10_000) // len(PLANS) + 1
Vector = ctypes.c_double * COUNT


class RandomHost:
    """One rank; `draw` is in step on all ranks."""

    def __init__(self, world, plan, seed):
        self.rank, self.draw = world.rank, random.Random(seed)
        self.engine = host.Engine(world)
        self.values = [[float(10 * u + i) for i in range(COUNT)]
                       for u in range(UNITS)]
        self.params = [self.engine.add_param(f"w{u}", [COUNT])
                       for u in range(UNITS)]
        self.units = [self.engine.add_unit(f"u{u}", [p])
                      for u, p in enumerate(self.params)]
        for u, masks in plan.pop("places", {}).items():
            self.engine.place(self.units[u], *masks)
        self.engine.plan_and_commit(microbatches=3, **plan)
        for p, v in zip(self.params, self.values):
            self.engine.write(p, Vector(*v), COUNT)
        self.first = {}
        self.tick = 0

    def chance(self, percent):
        return self.draw.randrange(100) < percent

    def begin(self, u, kind, push=False):
        view = self.engine.begin(self.units[u], kind, push)
        address = view.params[0]
        assert self.first.setdefault(u, address) == address, "address moved"
        seen = list(Vector.from_address(address))
        assert seen == self.values[u], (u, kind, seen)
        return view

    def contribution(self, rank):
        return [float((self.tick * 7 + rank * 3 + i) % 9 - 4)
                for i in range(COUNT)]

    def add_gradient(self, u, view, expected):
        """Writes or pushes one gradient; True if it is final."""
        self.tick += 1
        mine = self.contribution(self.rank)
        for i in range(COUNT):
            expected[u][i] += sum(self.contribution(r)[i] for r in range(RANKS))
        if view is None:
            data, shape = Vector(*mine), (ctypes.c_int64 * 1)(COUNT)
            self.engine.push(self.params[u], data=ctypes.addressof(data),
                             ndim=1, code=2, bits=64, lanes=1, shape=shape)
            return
        target = Vector.from_address(view.grads[0])
        for i in range(COUNT):
            target[i] = mine[i] + (target[i] if view.betas[0] else 0.0)

    def backward(self, u, expected):
        if self.chance(30) and self.chance(50):
            self.begin(u, R)
            self.engine.end(self.units[u], R)
        push = self.chance(40)
        view = self.begin(u, B, push)
        inner = self.chance(30)
        if inner:
            self.begin(u, R)  # recompute inside backward, maybe never ended
        if push:
            if self.chance(90):
                self.add_gradient(u, None, expected)
        else:
            self.add_gradient(u, view, expected)
            if self.chance(20):  # a second backward through the same forward
                self.add_gradient(u, self.begin(u, B), expected)
            if self.chance(90):
                self.engine.ready(self.params[u])
            else:  # never made ready counts as zero: take it back
                self.forget(u, expected)
        if inner and self.chance(50):
            self.engine.end(self.units[u], R)
        if self.chance(60):
            self.engine.end(self.units[u], B)

    def forget(self, u, expected):
        expected[u] = list(self.before[u])

    def microbatch(self, last, expected):
        if self.chance(15):  # an evaluation in between
            self.engine.microbatch(_ffi.ALQ_EVAL)
            for u in range(UNITS):
                self.begin(u, F_NOGRAD)
                self.engine.end(self.units[u], F_NOGRAD)
            self.engine.microbatch_end()
        self.engine.microbatch(_ffi.ALQ_TRAIN, 1.0, last)
        for u in range(UNITS):
            if self.chance(10):
                continue
            self.begin(u, F_NOGRAD if self.chance(10) else F)
            self.begin(u, F)
            for _ in range(self.draw.randrange(2)):
                self.engine.end(self.units[u], F)
        for u in reversed(range(UNITS)):
            if not self.chance(10):
                self.before = [list(e) for e in expected]
                self.backward(u, expected)
        self.engine.microbatch_end()
        if self.chance(10):
            self.engine.microbatch_end()  # twice is harmless

    def step(self):
        expected = [[0.0] * COUNT for _ in range(UNITS)]
        count = self.draw.randrange(1, 4)
        for m in range(count):
            self.microbatch(m + 1 == count, expected)
        self.engine.step(lr=0.0)
        for u, p in enumerate(self.params):
            got = Vector()
            self.engine.call("alq_param_read", p, _ffi.ALQ_GRAD, got, 0, COUNT,
                             _ffi.ALQ_F64)
            assert list(got) == expected[u], (u, list(got), expected[u])


class RandomSequences(unittest.TestCase):
    def test_ten_thousand(self):
        for number, plan in enumerate(PLANS):
            plan = dict(plan)
            mesh = plan.pop("mesh", "")

            def rank_main(world):
                played = RandomHost(world, dict(plan), 1000 + number)
                for _ in range(SEQUENCES):
                    played.step()
                played.engine.close()

            with self.subTest(plan=plan):
                host.run_ranks(LIBRARY, RANKS, rank_main, mesh=mesh)


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

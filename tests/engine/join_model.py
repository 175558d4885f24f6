"""A small model whose ranks have different numbers of microbatches, and one rank
that has all of them.

Gradients are random and depend on the parameters that the forward saw: a wrong
order of a sum, a stale gather and a lost contribution all change bits.
"""

import array
import ctypes
import functools
import hashlib
import math
import random
import unittest

import host
from host import _ffi

F, F_NOGRAD, B = _ffi.ALQ_PASS_F, _ffi.ALQ_PASS_F_NOGRAD, _ffi.ALQ_PASS_B
TRAIN, EVAL = _ffi.ALQ_TRAIN, _ffi.ALQ_EVAL
EACH, LAST = _ffi.ALQ_DEFER_EACH, _ffi.ALQ_DEFER_LAST
COPY, MAP = _ffi.ALQ_GATHER_COPY, _ffi.ALQ_GATHER_MAP
S, R = _ffi.ALQ_AXIS_DP_SHARD, _ffi.ALQ_AXIS_DP_REPLICATE
# name, count, trainable, unit.  The first is used by the last unit as well.
PARAMS = [("embed", 29, True, 0), ("norm", 3, True, 0), ("a", 17, True, 1),
          ("frozen", 10, False, 1), ("empty", 0, True, 1), ("b", 1, True, 2),
          ("c", 53, True, 2), ("head", 8, True, 3)]
UNITS = 4
STATES = (_ffi.ALQ_STATE_0, _ffi.ALQ_STATE_1)
MOST = 7  # microbatches per step and rank


@functools.lru_cache(maxsize=None)
def draw(name, count):
    source = random.Random(name)
    return [source.uniform(-1, 1) for _ in range(count)]


class Model:
    """On one rank; f32."""

    def __init__(self, world, plan, places=None, push=False):
        self.world, self.engine = world, host.Engine(world)
        self.push = push
        self.ids = [self.engine.add_param(n, [count], t, _ffi.ALQ_F32)
                    for n, count, t, _ in PARAMS]
        self.units = [[i for i, p in zip(self.ids, PARAMS) if p[3] == u]
                      for u in range(UNITS)]
        self.units[-1].append(self.ids[0])
        for u, params in enumerate(self.units):
            self.engine.add_unit(f"u{u}", params, root=u == 0)
        for unit, masks in (places or {}).items():
            self.engine.place(unit, *masks)
        self.engine.plan_and_commit(**plan)
        self.start()

    def start(self):
        """As new, whatever was trained before."""
        for i, (name, count, trainable, _) in zip(self.ids, PARAMS):
            data = array.array("f", draw(name, count)).tobytes()
            self.engine.write(i, data, count)
            for what in STATES if trainable else ():
                self.engine.call("alq_param_write", i, what, bytes(4 * count),
                                 0, count, 0)
        self.engine.call("alq_step_set", 0)

    def seen(self, view, unit, values):
        for k, p in enumerate(self.units[unit]):
            count = PARAMS[p][1]
            values[p] = array.array("f", ctypes.string_at(
                view.params[k], 4 * count)) if count else []

    def microbatch(self, number, last, spoil=False, skip=()):
        """number: which of the step's; last: of all ranks."""
        engine, values = self.engine, {}
        engine.microbatch(TRAIN, 1.0 + number % 3, last)
        for u in range(UNITS):
            self.seen(engine.begin(u, F), u, values)
            engine.end(u, F)
        for u in reversed(range(UNITS)):
            if u in skip:
                continue
            view = engine.begin(u, B, push=self.push)
            for k, p in enumerate(self.units[u]):
                name, count, trainable, home = PARAMS[p]
                if not trainable or (self.push and u != home):
                    continue
                grads = [g + 0.25 * v for g, v in zip(
                    draw(f"{name} {number} {u}", count), values[p])]
                if name == "norm":  # zeros keep their sign, too
                    grads = [-0.0] * count
                if spoil and count:
                    grads[-1] = math.nan
                self.give(view, k, p, grads, u == home)
            engine.end(u, B)
        engine.microbatch_end()

    def give(self, view, k, p, grads, final):
        count = len(grads)
        if self.push:
            data = (ctypes.c_float * max(count, 1))(*grads)
            tensor = _ffi.alq_tensor(
                data=ctypes.addressof(data), ndim=1, code=2, bits=32, lanes=1,
                device_type=_ffi.ALQ_DEVICE_CPU,
                shape=host.array(ctypes.c_int64, [count]))
            self.engine.call("alq_grad_push", p, ctypes.byref(tensor), None)
            return
        if count:
            target = (ctypes.c_float * count).from_address(view.grads[k])
            target[:] = ([g + t for g, t in zip(grads, target)]
                         if view.betas[k] else grads)
        if final:
            self.engine.ready(p)

    def evaluate(self):
        """The sum of all parameters that the forward sees."""
        values = {}
        self.engine.microbatch(EVAL)
        for u in range(UNITS):
            self.seen(self.engine.begin(u, F_NOGRAD), u, values)
            self.engine.end(u, F_NOGRAD)
        self.engine.microbatch_end()
        return sum(sum(v) for v in values.values())

    def step(self):
        report = self.engine.step(0.01, 0.1, clip=0.5)
        return (report.grad_norm.hex(), report.weight_sum, report.step,
                report.skipped)

    def join(self, call="alq_join_enter"):
        report = host.make(_ffi.alq_join_report)
        self.engine.call(call, ctypes.byref(report))
        return report

    def bits(self):
        """A hash of everything that training changes."""
        digest = hashlib.sha256()
        for what in (_ffi.ALQ_VALUE, _ffi.ALQ_GRAD, *STATES):
            for i, (_, count, trainable, _) in zip(self.ids, PARAMS):
                if trainable or what == _ffi.ALQ_VALUE:
                    data = ctypes.create_string_buffer(max(4 * count, 1))
                    self.engine.call("alq_param_read", i, what, data, 0, count,
                                     0)
                    digest.update(data.raw)
        return digest.hexdigest()


def splits(total, ranks):
    """All ways to give `total` microbatches to the ranks."""
    if ranks == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1)
            for rest in splits(total - first, ranks - 1)]


class Ragged:
    """A step in which rank r has counts[r] microbatches, and how one rank
    repeats it.  shards: ranks in a replica."""

    def __init__(self, counts, each, shards=None):
        self.counts, self.most = counts, max(counts)
        self.numbers = {}  # (rank, microbatch of the rank) -> number
        shards = shards or len(counts)
        replicas = []
        for first in range(0, len(counts), shards):
            ranks = range(first, first + shards)
            if each:
                groups = [[(r, m) for r in ranks if counts[r] > m]
                          for m in range(self.most)]
            else:
                groups = [[(r, m) for m in range(counts[r])] for r in ranks]
            groups = [group for group in groups if group]
            for group in groups:
                for one in group:
                    self.numbers[one] = len(self.numbers)
            if groups:
                replicas.append("(%s)" % "+".join(
                    str(len(group)) for group in groups))
        self.nesting = "+".join(replicas)

    def run(self, model, spoil=None):
        """The microbatches of this rank, and the step, by its own call or in
        join.  spoil: a number."""
        rank = model.world.rank
        for m in range(self.counts[rank]):
            number = self.numbers[rank, m]
            model.microbatch(number, m + 1 == self.most, number == spoil)
        if self.counts[rank] < self.most:
            return model.join()
        report = model.step()
        assert model.join().steps == 0
        return report

    def alone(self, model):
        for number in range(len(self.numbers)):
            model.microbatch(number, number + 1 == len(self.numbers))
        return model.step()

    def plan(self):
        return dict(strategy=_ffi.ALQ_STRATEGY_SINGLE,
                    nesting=self.nesting.encode(),
                    microbatches=len(self.numbers))


DDP, FSDP = _ffi.ALQ_STRATEGY_DDP, _ffi.ALQ_STRATEGY_FSDP
ONE_AXIS = {
    "ddp": dict(strategy=DDP),
    "zero1": dict(strategy=_ffi.ALQ_STRATEGY_ZERO1),
    "zero2": dict(strategy=_ffi.ALQ_STRATEGY_ZERO2),
    "fsdp copy": dict(strategy=FSDP, gather=COPY),
    "fsdp map": dict(strategy=FSDP, gather=MAP),
}


class Case(unittest.TestCase):
    library = None  # set by the program

    def on_ranks(self, ranks, body, mesh="", **place):
        return host.run_ranks(self.library, ranks, body, mesh=mesh, **place)

    def alone(self, steps, push=False, known={}):
        """What one rank has after these steps: reports and bits."""
        key = push, *(s.nesting for s in steps)

        def rank_main(world):
            reports = []
            model = Model(world, steps[0].plan(), push=push)
            for i, step in enumerate(steps):
                if i > 0:
                    model.engine.call("alq_engine_plan", ctypes.byref(
                        host.make(_ffi.alq_plan_desc, **step.plan())), None)
                    model.engine.call("alq_engine_commit", None)
                reports.append(step.alone(model))
            bits = model.bits()
            model.engine.close()
            return reports, bits

        if key not in known:
            known[key], = self.on_ranks(1, rank_main)
        return known[key]

"""Random models, placements and plans against NumPy.

Each seed draws units of mixed dtypes (frozen, tied, empty, one element), three
optimizers, placements per unit, and steps with evaluations, holds, recomputes,
pushed and missing gradients and new plans in between.  Every parameter that a
pass lends must equal the values read after the last step; norms and values must
be those of a NumPy model.  Usage: oracle_test.py LIBRARY [unittest options]
"""

import ctypes
import math
import random
import sys
import unittest

import numpy as np

import host
from host import _ffi

F64, F32, F16, BF16 = _ffi.ALQ_F64, _ffi.ALQ_F32, _ffi.ALQ_F16, _ffi.ALQ_BF16
F, B, R, NOGRAD = (_ffi.ALQ_PASS_F, _ffi.ALQ_PASS_B, _ffi.ALQ_PASS_R,
                   _ffi.ALQ_PASS_F_NOGRAD)
SHAPES = [[1], [0], [7], [5, 3], [16], [33, 2], [130], [64, 5], [0, 4],
          [17, 31]]
MESHES = [("", 2), ("", 3), ("", 4), ("dp_replicate=2,dp_shard=2", 4),
          ("dp_replicate=3", 3)]
LADDER = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)]
BOTH = [(0, 0, 3), (0, 3, 3), (3, 3, 3), (0, 1, 3), (1, 1, 3), (1, 3, 3)]
LR, DECAY, STEPS, SEEDS = 0.05, 0.01, 5, 80
OPTIMIZERS = [dict(kind=_ffi.ALQ_OPTIM_ADAMW, **host.ADAMW),
              dict(kind=_ffi.ALQ_OPTIM_SGD, momentum=0.9, nesterov=1),
              dict(kind=_ffi.ALQ_OPTIM_SGD)]
STORED = {F64: np.float64, F32: np.float32, F16: np.float16, BF16: np.uint16}
# Gradients of few bits are exact; a value is off by the optimizer's rounding
# in the master's dtype, and a bf16 or f16 sum of a tied or scaled gradient by
# its own.
TOLERANCE = {F64: 1e-11, F32: 1e-4, F16: 3e-2, BF16: 3e-2}


def to_stored(values, dtype):
    if dtype != BF16:
        return np.ascontiguousarray(values, STORED[dtype])
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_stored(data, dtype):
    stored = np.frombuffer(data, STORED[dtype])
    if dtype == BF16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def rounded(values, dtype):
    return from_stored(to_stored(values, dtype).tobytes(), dtype)


class Param:
    def __init__(self, draw, dtypes):
        self.shape = draw.choice(SHAPES)
        self.count = math.prod(self.shape)
        self.trainable = draw.random() < 0.8
        self.dtype = draw.choice(dtypes)
        self.flags = ((_ffi.ALQ_PARAM_TRAINABLE if self.trainable else 0) |
                      (_ffi.ALQ_PARAM_WHOLE_ROWS if draw.random() < 0.2 else 0))
        self.group = draw.randrange(len(OPTIMIZERS))


class Case:
    """Everything that is drawn from a seed, the same on all ranks."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.seed = seed
        self.mesh, self.ranks = draw.choice(MESHES)
        dtypes = draw.choice([[F64], [F32], [BF16], [F16, F32],
                              [F64, F32, BF16]])
        self.params, self.units = [], []
        for _ in range(draw.randrange(1, 7)):
            n = draw.choice([0, 1, 1, 2, 3])
            self.units.append(list(range(len(self.params),
                                         len(self.params) + n)))
            self.params += [Param(draw, dtypes) for _ in range(n)]
        self.tie(draw)
        self.root = draw.random() < 0.4
        self.microbatches = draw.choice([1, 1, 2, 3])
        self.plans = [self.plan(draw) for _ in range(4)]
        self.places = self.placements(draw)
        self.engine = dict(accumulate=draw.choice([0, 0, 2]),
                           loss_scale=draw.choice([0.0, 0.0, 1024.0]))
        self.clip = draw.choice([0.0, 0.0, 0.5])

    def tie(self, draw):
        """One parameter is used by a second unit as well."""
        self.tied = None
        if self.params and len(self.units) > 1 and draw.random() < 0.5:
            p = self.tied = draw.randrange(len(self.params))
            draw.choice([u for u in self.units if p not in u]).append(p)

    def plan(self, draw):
        plan = dict(prefetch=draw.choice([-1, 0, 1, 2, 3, 50]),
                    max_open=len(self.units) + 2,
                    reshard=draw.choice([0, 0, 1, 2]),
                    defer=draw.choice([0, _ffi.ALQ_DEFER_EACH,
                                       _ffi.ALQ_DEFER_LAST]),
                    gather=draw.choice([0, 0, _ffi.ALQ_GATHER_COPY]),
                    memory=draw.choice([0, 0, _ffi.ALQ_MEMORY_SLAB,
                                        _ffi.ALQ_MEMORY_INTO]),
                    microbatches=self.microbatches,
                    phases=_ffi.ALQ_PHASE_TRAIN | _ffi.ALQ_PHASE_EVAL |
                    _ffi.ALQ_PHASE_HOLD_ALL)
        if "," not in self.mesh:
            return dict(plan, strategy=draw.choice(
                list(host.STRATEGIES.values())))
        if draw.random() < 0.5:
            return dict(plan, strategy=_ffi.ALQ_STRATEGY_HSDP)
        masks = draw.choice(LADDER + BOTH)
        return dict(plan, strategy=_ffi.ALQ_STRATEGY_CUSTOM,
                    param_axes=masks[0], grad_axes=masks[1],
                    state_axes=masks[2])

    def placements(self, draw):
        two, replicas = "," in self.mesh, self.mesh == "dp_replicate=3"
        places = {}
        for u, unit in enumerate(self.units):
            # Tied units must be placed alike: those follow the plan.
            if self.tied in unit or draw.random() < 0.5:
                continue
            masks = draw.choice(LADDER + (BOTH if two else []))
            places[u] = tuple(2 * m for m in masks) if replicas else masks
        return places

    def weight(self, step, rank, m):
        return float((step + rank + m + self.seed) % 3 + (m == 0))

    def initial(self, p):
        draw = np.random.RandomState(self.seed % 1000 + p)
        return draw.randint(-16, 17, self.params[p].count) / 8.0

    def gradient(self, p, step, rank, m, unit):
        draw = np.random.RandomState(
            (self.seed * 7919 + p * 131 + step * 17 + rank * 5 + m * 3 + unit)
            % 2**31)
        return draw.randint(-8, 9, self.params[p].count) / 8.0

    def events(self, step):
        """What happens in a step besides the passes themselves."""
        draw = random.Random(self.seed * 100 + step)
        chance = lambda percent: draw.randrange(100) < percent
        return dict(
            replan=step > 0 and chance(60), hold=chance(30),
            microbatches=[dict(
                evaluate=chance(30),
                forward=[dict(twice=chance(20), ended=chance(80))
                         for _ in self.units],
                backward=[dict(recompute=chance(20), push=chance(25),
                               missing=chance(15), ended=chance(70))
                          for _ in self.units])
                for _ in range(self.microbatches)])


class Rank:
    """The case in one rank's engine."""

    def __init__(self, case, world):
        self.case, self.rank = case, world.rank
        self.engine = host.Engine(world, **case.engine)
        for i, p in enumerate(case.params):
            desc = host.make(
                _ffi.alq_param_desc, name=b"p%d" % i, dtype=p.dtype,
                flags=p.flags, ndim=len(p.shape), optim_group=p.group,
                shape=host.array(ctypes.c_int64, p.shape))
            self.engine.call("alq_param_add", ctypes.byref(desc), None)
        for u, params in enumerate(case.units):
            self.engine.add_unit(f"u{u}", params, root=case.root and u == 0)
        for u, masks in case.places.items():
            self.engine.place(u, *masks)
        for g, fields in enumerate(OPTIMIZERS):
            desc = host.make(_ffi.alq_optimizer_desc, **fields)
            self.engine.call("alq_optimizer_set", g, ctypes.byref(desc))
        self.slab = None
        self.use(case.plans[0])
        for i, p in enumerate(case.params):
            data = to_stored(case.initial(i), p.dtype)
            self.engine.write(i, data.ctypes.data, p.count)
        self.refresh()

    def use(self, plan):
        report = host.make(_ffi.alq_plan_report)
        self.engine.call("alq_engine_plan", ctypes.byref(
            host.make(_ffi.alq_plan_desc, **plan)), ctypes.byref(report))
        old, address, self.slab = self.slab, None, None
        if plan["memory"] == _ffi.ALQ_MEMORY_SLAB:
            self.slab = ctypes.create_string_buffer(report.total_bytes + 4096)
            address = -(-ctypes.addressof(self.slab) // 4096) * 4096
        self.engine.call("alq_engine_commit", address)
        if old is not None:  # ours again
            ctypes.memset(old, 0xff, len(old))
        self.into = plan["memory"] == _ffi.ALQ_MEMORY_INTO

    def refresh(self):
        """From now on passes must lend these values."""
        self.values = []
        for i, p in enumerate(self.case.params):
            data = np.empty(p.count)
            self.engine.call("alq_param_read", i, _ffi.ALQ_VALUE,
                             data.ctypes.data, 0, p.count, F64)
            self.values.append(data)

    def begin(self, u, kind, push=False):
        params = [self.case.params[p] for p in self.case.units[u]]
        view = host.make(_ffi.alq_unit_view,
                         flags=_ffi.ALQ_VIEW_PUSH if push else 0)
        buffers = [ctypes.create_string_buffer(8 * p.count + 8) for p in params]
        pointers = host.array(ctypes.c_void_p,
                              [ctypes.addressof(b) for b in buffers])
        if self.into:
            view.into = ctypes.cast(pointers, type(view.into))
        self.engine.call("alq_unit_begin", u, kind, None, ctypes.byref(view))
        for i, (id_, p) in enumerate(zip(self.case.units[u], params)):
            seen = self.load(view.params[i], p)
            want = rounded(self.values[id_], p.dtype)
            assert np.array_equal(seen, want), (u, id_, kind, seen, want)
        return view

    @staticmethod
    def load(address, p):
        size = p.count * np.dtype(STORED[p.dtype]).itemsize
        return from_stored(ctypes.string_at(address, size) if size else b"",
                           p.dtype)

    def evaluate(self):
        self.engine.microbatch(_ffi.ALQ_EVAL)
        for u in range(len(self.case.units)):
            self.begin(u, NOGRAD)
            self.engine.end(u, NOGRAD)
        self.engine.microbatch_end()

    def push(self, p, gradient):
        data = np.ascontiguousarray(gradient, np.float32)
        self.engine.push(p, data=data.ctypes.data, ndim=1, code=2, bits=32,
                         lanes=1, shape=(ctypes.c_int64 * 1)(len(data)))

    def backward(self, u, step, m, scale, events):
        if events["recompute"]:
            self.begin(u, R)
        units, params = self.case.units, self.case.params
        push = events["push"] and self.case.tied not in units[u]
        view = self.begin(u, B, push)
        for i, p in enumerate(units[u]):
            if not params[p].trainable or push and events["missing"]:
                continue
            gradient = self.case.gradient(p, step, self.rank, m, u) * scale
            if push:
                self.push(p, gradient)
                continue
            if events["missing"]:
                gradient *= 0
            if view.betas[i]:
                gradient += self.load(view.grads[i], params[p])
            data = to_stored(gradient, params[p].dtype)
            ctypes.memmove(view.grads[i], data.ctypes.data, data.nbytes)
            if u == min(v for v, unit in enumerate(units) if p in unit):
                self.engine.ready(p)
        if events["ended"]:
            self.engine.end(u, B)

    def microbatch(self, step, m, events):
        if events["evaluate"]:
            self.evaluate()
        scale = self.engine.microbatch(
            _ffi.ALQ_TRAIN, self.case.weight(step, self.rank, m),
            m + 1 == self.case.microbatches)
        if self.case.root:
            self.begin(0, F)
        for u, event in enumerate(events["forward"]):
            if event["twice"]:
                self.begin(u, NOGRAD)
            self.begin(u, F)
            if event["ended"]:
                self.engine.end(u, F)
        for u in reversed(range(len(self.case.units))):
            self.backward(u, step, m, scale, events["backward"][u])
        self.engine.microbatch_end()

    def step(self, number):
        events = self.case.events(number)
        if events["replan"]:
            self.use(self.case.plans[number % len(self.case.plans)])
        if events["hold"]:
            self.engine.call("alq_unit_hold", _ffi.ALQ_UNIT_ALL)
            for _ in range(self.rank):  # as many as each rank likes
                self.evaluate()
            self.engine.call("alq_unit_unhold", _ffi.ALQ_UNIT_ALL)
        for m, event in enumerate(events["microbatches"]):
            self.microbatch(number, m, event)
        groups = len(OPTIMIZERS)
        desc = host.make(_ffi.alq_step_desc, n_groups=groups,
                         lr=host.array(ctypes.c_double, [LR] * groups),
                         weight_decay=host.array(ctypes.c_double,
                                                 [DECAY] * groups),
                         clip_norm=self.case.clip)
        report = host.make(_ffi.alq_step_report)
        self.engine.call("alq_step", ctypes.byref(desc), None,
                         ctypes.byref(report))
        assert report.step == number + 1 and report.skipped == 0
        self.refresh()
        return report.grad_norm, report.weight_sum


def on_rank(case, world):
    rank = Rank(case, world)
    norms = [rank.step(s) for s in range(STEPS)]
    rank.engine.close()
    return norms, rank.values


class Oracle:
    """The same steps in f64."""

    def __init__(self, case):
        self.case = case
        self.values = [rounded(case.initial(i), p.dtype)
                       for i, p in enumerate(case.params)]
        self.first = [np.zeros(p.count) for p in case.params]
        self.second = [np.zeros(p.count) for p in case.params]
        self.norms = [self.step(s) for s in range(STEPS)]

    def sums(self, step):
        case, weights = self.case, 0.0
        sums = [np.zeros(p.count) for p in case.params]
        for m, event in enumerate(case.events(step)["microbatches"]):
            for rank in range(case.ranks):
                weight = case.weight(step, rank, m)
                weights += weight
                for u, unit in enumerate(case.units):
                    for p in unit:
                        if not event["backward"][u]["missing"]:
                            sums[p] += weight * case.gradient(p, step, rank, m,
                                                              u)
        return sums, weights

    def step(self, step):
        sums, weights = self.sums(step)
        trained = [i for i, p in enumerate(self.case.params) if p.trainable]
        norm = math.sqrt(sum(float((sums[i]**2).sum()) for i in trained))
        norm /= weights
        factor = 1 / weights
        if self.case.clip:
            factor *= min(1, self.case.clip / (norm + 1e-6))
        for i in trained:
            self.update(i, sums[i] * factor, step + 1)
        return norm, weights

    def update(self, i, g, t):
        optimizer = OPTIMIZERS[self.case.params[i].group]
        if optimizer["kind"] == _ffi.ALQ_OPTIM_ADAMW:
            b1, b2 = optimizer["beta1"], optimizer["beta2"]
            self.first[i] = b1 * self.first[i] + (1 - b1) * g
            self.second[i] = b2 * self.second[i] + (1 - b2) * g * g
            self.values[i] = self.values[i] * (1 - LR * DECAY) - LR * (
                self.first[i] / (1 - b1**t)) / (
                np.sqrt(self.second[i] / (1 - b2**t)) + optimizer["eps"])
            return
        g = g + DECAY * self.values[i]
        if "momentum" in optimizer:
            self.first[i] = optimizer["momentum"] * self.first[i] + g
            g = g + optimizer["momentum"] * self.first[i]
        self.values[i] = self.values[i] - LR * g


class Oracles(unittest.TestCase):
    def test_random_models(self):
        for seed in range(SEEDS):
            case = Case(seed)
            with self.subTest(seed=seed):
                results = host.run_ranks(LIBRARY, case.ranks,
                                         lambda w: on_rank(case, w),
                                         mesh=case.mesh)
                self.check(case, Oracle(case), results)

    def check(self, case, oracle, results):
        loosest = max((TOLERANCE[p.dtype] for p in case.params), default=0)
        for norms, values in results:
            self.assertEqual(norms, results[0][0])
            for (norm, weights), (want, total) in zip(norms, oracle.norms):
                self.assertEqual(weights, total)
                self.assertLessEqual(abs(norm - want), loosest * max(1, want))
            for i, p in enumerate(case.params):
                np.testing.assert_array_equal(values[i], results[0][1][i])
                np.testing.assert_allclose(
                    values[i], oracle.values[i], rtol=TOLERANCE[p.dtype],
                    atol=TOLERANCE[p.dtype], err_msg=f"{i} {vars(p)}")


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

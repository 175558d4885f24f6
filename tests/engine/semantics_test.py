"""What the engine promises beyond a plain loop, against sums done by hand.

Gradients are small integers, so every sum and SGD step here is exact and the
comparison is for equality.  Freed memory is filled with NaN.
"""

import ctypes
import math
import sys
import unittest

import host
from host import _ffi

FSDP, DDP = _ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_DDP
PLACEMENTS = {
    "ddp": dict(strategy=DDP),
    "zero1": dict(strategy=_ffi.ALQ_STRATEGY_ZERO1),
    "zero2": dict(strategy=_ffi.ALQ_STRATEGY_ZERO2),
    "fsdp copied": dict(strategy=FSDP, gather=_ffi.ALQ_GATHER_COPY),
    "fsdp mapped": dict(strategy=FSDP, gather=_ffi.ALQ_GATHER_MAP),
}
# name, shape, trainable; unit of each.  Uneven, empty, frozen, one element.
MIXED = [("a", [5, 3], True, 0), ("frozen", [7], False, 0),
         ("empty", [0, 4], True, 0), ("b", [1], True, 0),
         ("big", [37, 11], True, 1), ("rows", [3, 64], True, 1),
         ("all frozen", [9], False, 2)]


def doubles(values):
    return (ctypes.c_double * max(len(values), 1))(*values)


def count(shape):
    return math.prod(shape)


def initial(name, n):
    return [float((i * 7 + len(name)) % 13) for i in range(n)]


def gradient(name, n, rank, microbatch):
    return [float((i + 3 * rank + 5 * microbatch + len(name)) % 11 - 5)
            for i in range(n)]


class Model:
    """The mixed parameters in an engine with SGD and momentum."""

    def __init__(self, world, plan, microbatches=1, tied=False, **options):
        self.engine = host.Engine(world, **options)
        self.ids = [self.engine.add_param(name, shape, trainable)
                    for name, shape, trainable, _ in MIXED]
        units = [[i for i, p in zip(self.ids, MIXED) if p[3] == u]
                 for u in range(3)]
        if tied:
            units[2].append(self.ids[4])
        self.unit_params = units
        self.units = [self.engine.add_unit(f"u{u}", ids)
                      for u, ids in enumerate(units)]
        sgd = host.make(_ffi.alq_optimizer_desc, kind=_ffi.ALQ_OPTIM_SGD,
                        momentum=0.5)
        self.engine.call("alq_optimizer_set", 0, ctypes.byref(sgd))
        self.report = host.make(_ffi.alq_plan_report)
        desc = host.make(_ffi.alq_plan_desc, microbatches=microbatches, **plan)
        self.engine.call("alq_engine_plan", ctypes.byref(desc),
                         ctypes.byref(self.report))
        self.memory = plan.get("memory", _ffi.ALQ_MEMORY_LEND)
        slab = None
        if self.memory == _ffi.ALQ_MEMORY_SLAB:
            self.block = ctypes.create_string_buffer(
                self.report.total_bytes + 4096)
            slab = (ctypes.addressof(self.block) + 4095) // 4096 * 4096
        self.engine.call("alq_engine_commit", slab)
        for i, (name, shape, _, _) in zip(self.ids, MIXED):
            n = count(shape)
            self.engine.write(i, doubles(initial(name, n)), n)

    def begin(self, unit, kind):
        view = host.make(_ffi.alq_unit_view)
        if self.memory == _ffi.ALQ_MEMORY_INTO:
            self.into = [doubles([0.0] * count(MIXED[p][1]))
                         for p in self.unit_params[unit]]
            pointers = (ctypes.c_void_p * len(self.into))(
                *[ctypes.addressof(d) for d in self.into])
            view.into = ctypes.cast(pointers, type(view.into))
            self.keep = pointers
        self.engine.call("alq_unit_begin", self.units[unit], kind, None,
                         ctypes.byref(view))
        return view

    def seen(self, view, unit):
        """Values as lent, per parameter name."""
        out = {}
        for k, p in enumerate(self.unit_params[unit]):
            n = count(MIXED[p][1])
            data = (ctypes.c_double * n).from_address(view.params[k]) if n else []
            out[MIXED[p][0]] = list(data)
        return out

    def microbatch(self, rank, index, weight, last, grads=gradient):
        """Forward and backward; returns what the forward saw."""
        e = self.engine
        e.microbatch(_ffi.ALQ_TRAIN, weight, last)
        seen = {}
        for u in range(3):
            seen.update(self.seen(self.begin(u, _ffi.ALQ_PASS_F), u))
            e.end(u, _ffi.ALQ_PASS_F)
        for u in (2, 1, 0):
            view = self.begin(u, _ffi.ALQ_PASS_B)
            for k, p in enumerate(self.unit_params[u]):
                name, shape, trainable, home = MIXED[p]
                if not trainable:
                    assert not view.grads[k]
                    continue
                n = count(shape)
                values = grads(name, n, rank, index)
                target = (ctypes.c_double * n).from_address(view.grads[k]) \
                    if n else []
                for i in range(n):
                    target[i] = values[i] + (target[i] if view.betas[k] else 0)
                if home == u:
                    e.ready(p)
            e.end(u, _ffi.ALQ_PASS_B)
        e.microbatch_end()
        return seen

    def read(self):
        out = {}
        for i, (name, shape, _, _) in zip(self.ids, MIXED):
            data = doubles([0.0] * count(shape))
            self.engine.read(i, data, count(shape))
            out[name] = list(data)[:count(shape)]
        return out


def sgd_by_hand(ranks, microbatches, weights, steps, lr, uses=None):
    """Values after the steps: mean by weight, SGD with momentum 0.5."""
    uses = uses or {}
    out = {}
    total = sum(weights) * ranks
    for name, shape, trainable, _ in MIXED:
        n = count(shape)
        p, buf = initial(name, n), None
        for _ in range(steps if trainable else 0):
            g = [0.0] * n
            for r in range(ranks):
                for m in range(microbatches):
                    g = [a + uses.get(name, 1) * b
                         for a, b in zip(g, gradient(name, n, r, m))]
            g = [x * (1 / total) for x in g]
            buf = g if buf is None else [0.5 * a + b for a, b in zip(buf, g)]
            p = [a - lr * b for a, b in zip(p, buf)]
        out[name] = p
    return out


class Semantics(unittest.TestCase):
    def on_ranks(self, ranks, body):
        return host.run_ranks(LIBRARY, ranks, body)

    def each(self, body, ranks=(1, 2, 3)):
        for n in ranks:
            for name, plan in PLACEMENTS.items():
                if n == 1 and "mapped" in name:
                    continue
                with self.subTest(ranks=n, placement=name):
                    body(n, plan)

    def test_mixed_units_train_as_by_hand(self):
        def check(ranks, plan):
            def rank_main(world):
                model = Model(world, plan, microbatches=2)
                for _ in range(3):
                    model.microbatch(world.rank, 0, 1.0, False)
                    seen = model.microbatch(world.rank, 1, 1.0, True)
                    model.engine.step(lr=0.5)
                values = model.read()
                again = model.microbatch(world.rank, 0, 1.0, True)
                model.engine.step(lr=0.0)
                model.engine.close()
                return values, seen, again

            for values, seen, again in self.on_ranks(ranks, rank_main):
                self.assertEqual(values, sgd_by_hand(ranks, 2, [1, 1], 3, 0.5))
                self.assertEqual(seen, sgd_by_hand(ranks, 2, [1, 1], 2, 0.5))
                self.assertEqual(again, values)

        self.each(check, ranks=(1, 2, 4))

    def test_progress_thread_and_grouping_are_neutral(self):
        """The same numbers with a progress thread, and with all in one unit."""
        def rank_main(world):
            model = Model(world, PLACEMENTS["fsdp copied"])
            for _ in range(3):
                model.microbatch(world.rank, 0, 1.0, True)
                model.engine.step(lr=0.5)
            values = model.read()
            model.engine.close()
            return values

        expected = sgd_by_hand(2, 1, [1], 3, 0.5)
        for progress in (_ffi.ALQ_PROGRESS_OFF, _ffi.ALQ_PROGRESS_ON):
            for values in host.run_ranks(LIBRARY, 2, rank_main,
                                         progress=progress):
                self.assertEqual(values, expected)
        homes = [p[3] for p in MIXED]
        try:
            for i, p in enumerate(MIXED):
                MIXED[i] = (*p[:3], 0)
            for values in self.on_ranks(2, rank_main):
                self.assertEqual(values, expected)
        finally:
            for i, p in enumerate(MIXED):
                MIXED[i] = (*p[:3], homes[i])

    def test_tied_parameters_add_their_uses(self):
        def check(ranks, plan):
            def rank_main(world):
                model = Model(world, plan, tied=True)
                for _ in range(2):
                    model.microbatch(world.rank, 0, 1.0, True)
                    model.engine.step(lr=0.5)
                values = model.read()
                model.engine.close()
                return values

            for values in self.on_ranks(ranks, rank_main):
                self.assertEqual(values, sgd_by_hand(ranks, 1, [1], 2, 0.5,
                                                     {"big": 2}))

        self.each(check, ranks=(1, 2))

    def test_slab_and_into_memory(self):
        for memory in (_ffi.ALQ_MEMORY_SLAB, _ffi.ALQ_MEMORY_INTO):
            plan = dict(strategy=FSDP, gather=_ffi.ALQ_GATHER_COPY,
                        memory=memory)

            def rank_main(world):
                model = Model(world, plan)
                for _ in range(2):
                    model.microbatch(world.rank, 0, 1.0, True)
                    model.engine.step(lr=0.5)
                values = model.read()
                model.engine.close()
                return values

            for values in self.on_ranks(2, rank_main):
                self.assertEqual(values, sgd_by_hand(2, 1, [1], 2, 0.5))

    def test_a_bad_gradient_is_named_and_skipped_by_all(self):
        def check(ranks, plan):
            culprit = ranks - 1

            def grads(name, n, rank, microbatch):
                values = gradient(name, n, rank, microbatch)
                if name == "rows" and rank == culprit and microbatch == 1:
                    values[100] = math.nan
                return values

            def rank_main(world):
                model = Model(world, plan, microbatches=2)
                before = model.read()
                model.microbatch(world.rank, 0, 1.0, False, grads)
                model.microbatch(world.rank, 1, 1.0, True, grads)
                report = model.engine.step(lr=0.5)
                after = model.read()
                model.microbatch(world.rank, 0, 1.0, False)
                model.microbatch(world.rank, 1, 1.0, True)
                good = model.engine.step(lr=0.5)
                values = model.read()
                model.engine.close()
                return before, report, after, good, values

            for before, report, after, good, values in self.on_ranks(
                    ranks, rank_main):
                self.assertEqual(report.skipped, 1)
                self.assertEqual(report.bad_param, 5)
                self.assertEqual(report.bad_rank, culprit)
                self.assertEqual(report.bad_microbatch, 1)
                self.assertEqual(report.step, 0)
                self.assertEqual(before, after)
                self.assertEqual((good.skipped, good.step), (0, 1))
                self.assertEqual(values, sgd_by_hand(ranks, 2, [1, 1], 1, 0.5))

        self.each(check, ranks=(1, 2))

    def test_norm_and_clip_do_not_depend_on_the_placement(self):
        norms = set()
        for ranks in (1, 2, 4):
            for name, plan in PLACEMENTS.items():
                if ranks == 1 and "mapped" in name:
                    continue

                def rank_main(world):
                    model = Model(world, plan, microbatches=4)
                    per_rank = 4 // ranks
                    for m in range(per_rank):
                        # The same four contributions whatever the layout.
                        g = world.rank * per_rank + m
                        model.microbatch(g, 0, 2.0, m + 1 == per_rank)
                    report = model.engine.step(lr=0.5, clip=0.25)
                    values = model.read()
                    model.engine.close()
                    return report.grad_norm, report.weight_sum, values

                for norm, weight, values in self.on_ranks(ranks, rank_main):
                    norms.add((norm, weight, str(values)))
        self.assertEqual(len(norms), 1)
        total = 0.0
        for name, shape, trainable, _ in MIXED:
            if trainable:
                n = count(shape)
                sums = [sum(x) for x in zip(*[gradient(name, n, g, 0)
                                              for g in range(4)])]
                total += sum((s / 8.0) ** 2 for s in sums)
        norm, weight, _ = norms.pop()
        self.assertEqual(weight, 8.0)
        self.assertAlmostEqual(norm, math.sqrt(total), delta=1e-12)

    def test_a_step_without_weight_changes_nothing(self):
        def rank_main(world):
            model = Model(world, PLACEMENTS["fsdp copied"])
            model.microbatch(world.rank, 0, 0.0, True)
            with self.assertRaises(host.Refused) as refused:
                model.engine.step(lr=0.5)
            self.assertEqual(refused.exception.code,
                             _ffi.ALQ_FAILED_PRECONDITION)
            # One rank with weight 0 is fine.
            model.microbatch(world.rank, 0, float(world.rank), True)
            report = model.engine.step(lr=0.0)
            self.assertEqual(report.weight_sum, 1.0)
            model.engine.close()

        self.on_ranks(2, rank_main)

    def test_traffic_is_what_the_plan_says(self):
        def check(ranks, plan):
            def rank_main(world):
                model = Model(world, plan)
                for _ in range(3):
                    model.microbatch(world.rank, 0, 1.0, True)
                    report = model.engine.report()
                    model.engine.step(lr=0.0)
                planned = model.report
                model.engine.close()
                return report, planned

            for report, planned in self.on_ranks(ranks, rank_main):
                self.assertEqual(report["gather_bytes"],
                                 planned.gather_bytes_per_step)
                self.assertEqual(report["reduce_bytes"],
                                 planned.reduce_bytes_per_step)

        self.each(check, ranks=(2, 4))

    def test_addresses_never_change(self):
        def rank_main(world):
            model = Model(world, PLACEMENTS["fsdp copied"])
            first = {}
            for step in range(3):
                model.engine.microbatch(_ffi.ALQ_TRAIN, 1.0, True)
                for kind, order in ((_ffi.ALQ_PASS_F, (0, 1, 2)),
                                    (_ffi.ALQ_PASS_B, (2, 1, 0))):
                    for u in order:
                        view = model.begin(u, kind)
                        where = [view.params[k]
                                 for k in range(len(model.unit_params[u]))]
                        self.assertEqual(first.setdefault(u, where), where)
                        model.engine.end(u, kind)
                model.engine.microbatch_end()
                model.engine.step(lr=0.0)
            model.engine.close()

        self.on_ranks(2, rank_main)


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

"""Placements per unit and per state: traffic, memory, refusals.

Usage: placement_plan_test.py LIBRARY [unittest options]
"""

import ctypes
import sys
import unittest

import host
from host import _ffi

FSDP, HSDP = _ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_HSDP
EACH, LAST = _ffi.ALQ_DEFER_EACH, _ffi.ALQ_DEFER_LAST
COPY, MAP = _ffi.ALQ_GATHER_COPY, _ffi.ALQ_GATHER_MAP
S, R = _ffi.ALQ_AXIS_DP_SHARD, _ffi.ALQ_AXIS_DP_REPLICATE
BOTH = S | R
F, B = _ffi.ALQ_PASS_F, _ffi.ALQ_PASS_B


class Sizes(unittest.TestCase):
    """Bytes, on units whose parts are even."""

    COUNT = 16 * 8 * 4

    def plan(self, world, masks, microbatches=1, steps=2, **plan):
        """Two units that share one slot; the last step's report."""
        engine = host.Engine(world)
        params = [engine.add_param(f"w{i}", [self.COUNT]) for i in range(2)]
        units = [engine.add_unit(f"u{p}", [p]) for p in params]
        for u, mask in zip(units, masks):
            engine.place(u, *mask)
        planned = engine.plan_and_commit(strategy=HSDP, prefetch=-1,
                                         microbatches=microbatches, **plan)
        zeros = (ctypes.c_double * self.COUNT)()
        for p in params:
            engine.write(p, zeros, self.COUNT)
        report = None
        for _ in range(steps):
            for m in range(microbatches):
                engine.microbatch(_ffi.ALQ_TRAIN, 1.0, m + 1 == microbatches)
                for u in units:
                    engine.begin(u, F)
                    engine.end(u, F)
                for u in reversed(units):
                    view = engine.begin(u, B)
                    ctypes.memset(view.grads[0], 0, 8 * self.COUNT)
                    engine.ready(u)
                    engine.end(u, B)
                engine.microbatch_end()
            report = engine.report()
            engine.step(lr=0.0)
        engine.close()
        return planned, report

    def gathered(self, masks, gathers, shards, replicas):
        """Bytes for one unit that is gathered `gathers` times in a step."""
        params, _, states = masks
        size = 8 * self.COUNT
        over_shards = size * (shards - 1) // shards if states & S else 0
        assembled = size // shards * (replicas - 1) // replicas \
            if states & R else 0
        if not params:
            return over_shards + assembled  # once, after the step
        return (gathers * over_shards +
                (gathers if params & R else 1) * assembled)

    def reduced(self, masks, times, shards, replicas):
        states, size = masks[2], 8 * self.COUNT
        over_shards = size * (shards - 1) // shards * (1 if states & S else 2)
        left = size // shards if states & S else size
        over_replicas = left * (replicas - 1) // replicas * \
            (1 if states & R else 2)
        return times * over_shards + over_replicas

    def test_traffic_is_the_formula(self):
        kinds = [(0, 0, 0), (0, 0, S), (0, S, S), (S, S, S), (0, 0, BOTH),
                 (S, S, BOTH), (S, BOTH, BOTH), (BOTH, BOTH, BOTH)]
        for replicas, shards in ((2, 2), (2, 4)):
            for first, second in zip(kinds, kinds[3:] + kinds[:3]):
                for microbatches, defer in ((1, 0), (2, EACH), (2, LAST)):
                    with self.subTest(first=first, second=second,
                                      shards=shards, defer=defer,
                                      microbatches=microbatches):
                        self.check(first, second, shards, replicas,
                                   microbatches, defer)

    def check(self, first, second, shards, replicas, microbatches, defer):
        results = host.run_ranks(
            LIBRARY, shards * replicas, lambda world: self.plan(
                world, (first, second), microbatches, gather=COPY,
                defer=defer),
            mesh=f"dp_replicate={replicas},dp_shard={shards}")
        # F0 F1 B1 B0 in one slot: unit 0 twice, and once more after each
        # microbatch; unit 1 once.  Alone in the slot: once each.
        m = microbatches
        shares = bool(first[0]) and bool(second[0])
        gathers = (1 + m, m) if shares else (1, 1)
        times = m if defer == EACH else 1
        expected = sum(self.gathered(masks, n, shards, replicas)
                       for masks, n in zip((first, second), gathers))
        reduced = sum(self.reduced(masks, times, shards, replicas)
                      for masks in (first, second))
        for planned, report in results:
            self.assertEqual(report["gather_bytes"], expected)
            self.assertEqual(planned.gather_bytes_per_step, expected)
            self.assertEqual(report["reduce_bytes"], reduced)
            self.assertEqual(planned.reduce_bytes_per_step, reduced)

    def test_a_mapping_moves_updated_parts_only(self):
        def rank_main(world):
            return self.plan(world, [(S, S, BOTH), (S, S, S)], gather=MAP)

        assembled = 8 * self.COUNT // 4
        for planned, report in host.run_ranks(
                LIBRARY, 4, rank_main, mesh="dp_replicate=2,dp_shard=2"):
            self.assertEqual(report["gather_bytes"], assembled)
            self.assertEqual(planned.gather_bytes_per_step, assembled)

    def test_memory_is_divided_by_the_axes(self):
        shards, replicas, size = 2, 2, 8 * self.COUNT
        expected = {  # of one unit: parameters, states, sums
            (S, S, S): (size // 2, 2 * size // 2, size // 2),
            (S, S, BOTH): (size // 2, 2 * size // 4, size // 2),
            (S, BOTH, BOTH): (size // 2, 2 * size // 4, size // 4),
            (BOTH, BOTH, BOTH): (size // 4, 2 * size // 4, size // 4),
            (0, S, BOTH): (size, 2 * size // 4, size // 2),
        }
        for masks, (params, states, sums) in expected.items():
            with self.subTest(masks=masks):
                for planned, _ in host.run_ranks(
                        LIBRARY, shards * replicas, lambda world: self.plan(
                            world, [masks] * 2, steps=1, gather=COPY),
                        mesh=f"dp_replicate={replicas},dp_shard={shards}"):
                    self.assertEqual(planned.param_bytes, 2 * params)
                    self.assertEqual(planned.state_bytes, 2 * states)
                    self.assertEqual(planned.accum_bytes, 2 * sums)
                    self.assertEqual(
                        planned.staging_bytes,
                        size // shards if masks[1] & R else 0)


class Refusals(unittest.TestCase):
    """Each a code and words that name what is wrong."""

    def refused(self, body, ranks=1, mesh=""):
        def rank_main(world):
            engine = host.Engine(world)
            for name in ("w", "x"):
                engine.add_param(name, [8])
            engine.add_unit("first", [0, 1])
            engine.add_unit("second", [0])
            try:
                body(engine, world.rank)
            except host.Refused as refused:
                return refused.code, str(refused)
            finally:
                engine.c.alq_engine_release(engine.handle)
            return _ffi.ALQ_OK, ""

        return host.run_ranks(LIBRARY, ranks, rank_main, mesh=mesh)

    def check(self, code, words, body, ranks=1, mesh=""):
        for got, message in self.refused(body, ranks, mesh):
            self.assertEqual(got, code, message)
            for word in words:
                self.assertIn(word, message)

    @staticmethod
    def plan(engine, **desc):
        engine.call("alq_engine_plan", ctypes.byref(
            host.make(_ffi.alq_plan_desc, **desc)), None)

    def test_the_call_itself(self):
        for unit in (-1, 2, 2**40, -2**63):
            self.check(_ffi.ALQ_OUT_OF_RANGE, [str(unit)],
                       lambda e, _, unit=unit: e.place(unit, 0, 0, 0))
        for masks in ((4, 4, 4), (0, 0, 2**31), (2**32 - 1,) * 3):
            self.check(_ffi.ALQ_INVALID_ARGUMENT, ["unknown axis"],
                       lambda e, _, masks=masks: e.place(0, *masks))
        for masks in ((S, 0, S), (S, S, 0), (0, S, R), (BOTH, S, BOTH)):
            self.check(_ffi.ALQ_UNSUPPORTED, ["parameters, gradients"],
                       lambda e, _, masks=masks: e.place(0, *masks))

    def test_after_the_plan(self):
        def body(engine, _):
            self.plan(engine)
            engine.place(0, 0, 0, 0)

        self.check(_ffi.ALQ_FAILED_PRECONDITION, ["before the plan"], body)

    def test_tied_units_must_agree(self):
        def body(engine, _):
            engine.place(0, 0, 0, 0)
            self.plan(engine, strategy=FSDP)

        self.check(_ffi.ALQ_INVALID_ARGUMENT,
                   ['"w"', '"first"', '"second"'], body, ranks=2)

        def agree(engine, _):
            engine.place(0, 0, 0, 0)
            engine.place(1, S, S, S)
            engine.place(1, 0, 0, 0)  # the last call counts
            self.plan(engine, strategy=FSDP)

        self.check(_ffi.ALQ_OK, [], agree, ranks=2)

    def test_replicas_alone(self):
        def body(engine, _):
            engine.place(1, 0, 0, R)
            self.plan(engine, strategy=HSDP)

        self.check(_ffi.ALQ_UNSUPPORTED,
                   ['unit "second"', "dp_shard covers"], body, 4,
                   "dp_replicate=2,dp_shard=2")

    def test_half_of_a_flattened_axis(self):
        def body(engine, _):
            engine.place(0, S, S, S)
            self.plan(engine, strategy=FSDP)

        self.check(_ffi.ALQ_INVALID_ARGUMENT,
                   ['unit "first"', "HSDP or CUSTOM"], body, 4,
                   "dp_replicate=2,dp_shard=2")

    def test_a_mapping_of_what_replicas_divide(self):
        def body(engine, _):
            for unit in (0, 1):
                engine.place(unit, BOTH, BOTH, BOTH)
            self.plan(engine, strategy=HSDP, gather=MAP)

        self.check(_ffi.ALQ_INVALID_ARGUMENT, ["MAP", "COPY"], body, 4,
                   "dp_replicate=2,dp_shard=2")

    def test_ranks_that_place_differently(self):
        def body(engine, rank):
            for unit in (0, 1):
                engine.place(unit, S, S, BOTH if rank == 3 else S)
            self.plan(engine, strategy=HSDP)

        self.check(_ffi.ALQ_RANK_MISMATCH, ["rank 3 planned"], body, 4,
                   "dp_replicate=2,dp_shard=2")


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

"""Edges where a wrong number, a hang or a crash would hide: nothing but empty
parameters, gradients that never came, masters written through views, steps on
a stream, ranks that hold units and meet, and plans that only one rank refuses.
Usage: edge_test.py LIBRARY [unittest options]
"""

import ctypes
import sys
import threading
import time
import unittest

import host
from host import _ffi
from robustness_test import refusal

FSDP, DDP, ZERO1 = (_ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_DDP,
                    _ffi.ALQ_STRATEGY_ZERO1)
COPY, MAP = _ffi.ALQ_GATHER_COPY, _ffi.ALQ_GATHER_MAP
B, NOGRAD = _ffi.ALQ_PASS_B, _ffi.ALQ_PASS_F_NOGRAD
SLAB, INTO = _ffi.ALQ_MEMORY_SLAB, _ffi.ALQ_MEMORY_INTO
ALL_PHASES = (_ffi.ALQ_PHASE_TRAIN | _ffi.ALQ_PHASE_EVAL |
              _ffi.ALQ_PHASE_HOLD_ALL)
INTO_FIELD = dict(_ffi.alq_unit_view._fields_)["into"]


class Units:
    """Units of one f64 parameter each; gradients are equal numbers."""

    def __init__(self, world, counts, kind=_ffi.ALQ_OPTIM_SGD, dtype=None,
                 engine={}, **plan):
        self.world, self.counts = world, counts
        self.engine = host.Engine(world, **engine)
        self.dtype = dtype or _ffi.ALQ_F64
        self.params = [self.engine.add_param(f"w{i}", [n], dtype=self.dtype)
                       for i, n in enumerate(counts)]
        self.units = [self.engine.add_unit(f"u{i}", [p])
                      for i, p in enumerate(self.params)]
        optimizer = host.make(_ffi.alq_optimizer_desc, kind=kind)
        self.engine.call("alq_optimizer_set", 0, ctypes.byref(optimizer))
        self.report = self.plan(**plan)
        if plan.get("memory", 0) != SLAB:
            self.commit()

    def plan(self, **plan):
        report = host.make(_ffi.alq_plan_report)
        self.engine.call("alq_engine_plan", ctypes.byref(
            host.make(_ffi.alq_plan_desc, **plan)), ctypes.byref(report))
        return report

    def commit(self, slab=None):
        self.engine.call("alq_engine_commit", slab)

    def write(self, i, value):
        n = self.counts[i]
        self.engine.call("alq_param_write", self.params[i], _ffi.ALQ_VALUE,
                         (ctypes.c_double * n)(*[value] * n), 0, n,
                         _ffi.ALQ_F64)

    def read(self, i):
        n = self.counts[i]
        data = (ctypes.c_double * n)()
        self.engine.call("alq_param_read", self.params[i], _ffi.ALQ_VALUE,
                         data, 0, n, _ffi.ALQ_F64)
        return list(data)

    def begin(self, i, kind, stream=None, **view):
        view = host.make(_ffi.alq_unit_view, **view)
        self.engine.call("alq_unit_begin", self.units[i], kind, stream,
                         ctypes.byref(view))
        return view

    def backward(self, i, value, stream=None):
        view, n = self.begin(i, B, stream), self.counts[i]
        if stream is not None:
            self.sync(stream)
        target = (ctypes.c_double * n).from_address(view.grads[0]) if n else []
        for k in range(n):
            target[k] = value + (target[k] if view.betas[0] else 0.0)
        self.engine.call("alq_grad_ready", self.params[i], stream)
        self.engine.call("alq_unit_end", self.units[i], B, stream)

    def sync(self, stream):
        self.world.library.call("alq_stream_sync", self.world.ctx, stream, 0)

    def step(self, stream=None):
        desc = host.make(_ffi.alq_step_desc, n_groups=1,
                         lr=host.array(ctypes.c_double, [1.0]))
        report = host.make(_ffi.alq_step_report)
        self.engine.call("alq_step", ctypes.byref(desc), stream,
                         ctypes.byref(report))
        return report

    def evaluate(self, i=0):
        self.engine.microbatch(_ffi.ALQ_EVAL)
        view = self.begin(i, NOGRAD)
        seen = list((ctypes.c_double * self.counts[i]).from_address(
            view.params[0]))
        self.engine.end(self.units[i], NOGRAD)
        self.engine.microbatch_end()
        return seen


def on_a_stream(world):
    stream = _ffi.alq_stream()
    world.library.call("alq_stream_create", world.ctx, ctypes.byref(stream))
    return ctypes.byref(stream)


class Edges(unittest.TestCase):
    def on_ranks(self, body, ranks=2, **place):
        return host.run_ranks(LIBRARY, ranks, body, **place)

    def test_nothing_but_empty_parameters(self):
        def rank_main(world, places, plan):
            model = host.Engine(world)
            for u in range(2):
                p = model.add_param(f"w{u}", [0, u])
                model.add_unit(f"u{u}", [p])
                if places:
                    model.place(u, *places[u])
            model.plan_and_commit(microbatches=2, **plan)
            for _ in range(2):
                for last in (False, True):
                    model.microbatch(_ffi.ALQ_TRAIN, last=last)
                    for u in range(2):
                        model.begin(u, B)
                        model.ready(u)
                        model.end(u, B)
                    model.microbatch_end()
                report = model.step(1.0)
            model.close()
            return report.step, report.grad_norm

        # The last is sharded by itself among whole ones, and so on.
        places = [None, [(0, 0, 0), (1, 1, 1)], [(0, 0, 1), (0, 1, 1)]]
        for strategy in (FSDP, ZERO1, DDP):
            for gather in (0, COPY):
                for defer in (_ffi.ALQ_DEFER_EACH, _ffi.ALQ_DEFER_LAST):
                    for place in places:
                        plan = dict(strategy=strategy, gather=gather,
                                    defer=defer)
                        with self.subTest(plan=plan, places=place):
                            self.assertEqual(self.on_ranks(
                                lambda w: rank_main(w, place, plan)),
                                [(2, 0.0)] * 2)

    def test_a_gradient_missing_in_one_microbatch_keeps_the_others(self):
        """The caller's own sums (accumulate FAST) are as good as the engine's."""
        def rank_main(world, accumulate, missing):
            model = Units(world, [4, 4], engine=dict(accumulate=accumulate),
                          strategy=DDP, microbatches=3)
            for i in range(2):
                model.write(i, 0.0)
            for m in range(3):
                model.engine.microbatch(_ffi.ALQ_TRAIN, last=m == 2)
                model.backward(1, 1.0 + world.rank)
                if m != missing:
                    model.backward(0, 2.0 ** m * (1 + world.rank))
                model.engine.microbatch_end()
            norm = model.step().grad_norm
            values = model.read(0)[0] * -6, model.read(1)[0] * -6, norm
            model.engine.close()
            return values

        for missing in range(3):
            results = [self.on_ranks(lambda w: rank_main(w, accumulate,
                                                         missing))
                       for accumulate in (_ffi.ALQ_ACCUMULATE_EXACT,
                                          _ffi.ALQ_ACCUMULATE_FAST)]
            self.assertEqual(results[0], results[1])
            self.assertEqual(results[0][0][:2],
                             (3.0 * (7 - 2 ** missing), 9.0))

    def test_masters_written_through_views_are_what_is_gathered(self):
        """A caller with an optimizer of its own updates the masters."""
        def rank_main(world, strategy, gather):
            model = Units(world, [40], _ffi.ALQ_OPTIM_NONE, _ffi.ALQ_BF16,
                          strategy=strategy, gather=gather)
            model.write(0, 1.0)
            shard = host.make(_ffi.alq_shard)
            model.engine.call("alq_shard_view", model.params[0],
                              _ffi.ALQ_VALUE, ctypes.byref(shard))
            self.assertEqual(shard.dtype, _ffi.ALQ_F32)
            own = (ctypes.c_float * shard.count).from_address(shard.data) \
                if shard.count else []
            for k in range(shard.count):
                own[k] = 3.0 + 2.0 ** -20  # rounds to 3
            model.engine.call("alq_param_touch")
            model.engine.microbatch(_ffi.ALQ_EVAL)
            view = model.begin(0, NOGRAD)
            seen = set((ctypes.c_uint16 * 40).from_address(view.params[0]))
            model.engine.microbatch_end()
            model.engine.close()
            return seen

        for plan in ((FSDP, COPY), (FSDP, MAP), (DDP, 0), (ZERO1, 0)):
            with self.subTest(plan=plan):
                self.assertEqual(
                    self.on_ranks(lambda w: rank_main(w, *plan), 3),
                    [{0x4040}] * 3)

    def test_values_after_a_step_on_a_stream(self):
        """Reads, other streams and another plan come after the update."""
        n = 200_000

        def rank_main(world, gather, after):
            stream = on_a_stream(world)
            model = Units(world, [n] * 3, strategy=FSDP, gather=gather,
                          prefetch=2)
            for i in range(3):
                model.write(i, 0.0)
            model.engine.microbatch(_ffi.ALQ_TRAIN)
            for i in range(3):
                model.backward(i, 1.0 + world.rank, stream)
            model.engine.call("alq_microbatch_end", stream)
            model.step(stream)
            if after == "pass":  # gathers ahead, then reads with no stream
                seen = model.evaluate(2)
            else:
                if after == "plan":
                    model.plan(strategy=DDP)
                    model.commit()
                seen = model.read(2)
            model.engine.close()
            model.sync(stream)
            return set(seen)

        for gather in (COPY, MAP):
            for after in ("read", "pass", "plan"):
                with self.subTest(gather=gather, after=after):
                    self.assertEqual(self.on_ranks(
                        lambda w: rank_main(w, gather, after)), [{-1.5}] * 2)

    def test_released_with_an_update_on_a_stream(self):
        """Its memory lasts until the stream has passed."""
        n = 200_000

        def rank_main(world):
            stream = on_a_stream(world)
            model = Units(world, [n] * 2, strategy=FSDP, gather=COPY)
            model.engine.microbatch(_ffi.ALQ_TRAIN)
            for i in range(2):
                model.backward(i, 1.0, stream)
            model.engine.call("alq_microbatch_end", stream)
            report = model.step(stream)
            world.library.c.alq_engine_release(model.engine.handle)
            model.sync(stream)
            return report.skipped

        self.assertEqual(self.on_ranks(rank_main), [0, 0])

    def test_released_by_another_thread_in_the_middle_of_a_call(self):
        def rank_main(world):
            model = Units(world, [100], strategy=FSDP, gather=COPY)
            model.engine.microbatch(_ffi.ALQ_TRAIN)
            model.backward(0, 1.0)
            model.engine.microbatch_end()
            handles = [(world.library.c.alq_engine_release,
                        model.engine.handle)]
            if world.rank == 0:  # waits for its peer inside the step
                handles.append((world.library.c.alq_mesh_release, world.mesh))
                late = threading.Timer(0.2, lambda: [f(h) for f, h in handles])
                late.start()
                norm = model.step().grad_norm
                late.join()
            else:
                time.sleep(0.6)
                norm = model.step().grad_norm
                handles[0][0](handles[0][1])
            return norm, refusal(model.engine.microbatch_end)

        self.assertEqual(self.on_ranks(rank_main),
                         [(10.0, _ffi.ALQ_INVALID_ARGUMENT)] * 2)

    def test_ranks_that_hold_run_what_they_like_and_still_meet(self):
        def rank_main(world):
            model = Units(world, [40, 40], strategy=FSDP, gather=COPY,
                          phases=ALL_PHASES)
            for i in range(2):
                model.write(i, 1.0)
            model.engine.call("alq_unit_hold", _ffi.ALQ_UNIT_ALL)
            seen = [set(model.read(0))]
            for _ in range(2 * world.rank):
                seen.append(set(model.evaluate()))
            seen.append(set(model.read(1)))
            model.write(0, 5.0)  # shows in what is held
            for _ in range(3 - world.rank):
                seen.append(set(model.evaluate()))
            model.engine.call("alq_param_touch")
            for _ in range(world.rank):
                seen.append(set(model.evaluate()))
            seen.append(set(model.read(0)))
            model.engine.call("alq_unit_unhold", _ffi.ALQ_UNIT_ALL)
            seen.append(set(model.evaluate()))
            model.engine.close()
            return seen

        one, five = {1.0}, {5.0}
        self.assertEqual(self.on_ranks(rank_main),
                         [[one] * (2 + 2 * r) + [five] * (5 - r + r)
                          for r in range(2)])

    def test_a_cap_is_kept_by_all_ranks_or_none(self):
        """Small units lie on the first ranks: their plans differ in bytes."""
        def rank_main(world, cap):
            counts = [16] * 100
            needs = Units(world, counts, strategy=FSDP, gather=COPY,
                          memory=SLAB).report.total_bytes  # not committed
            code = refusal(Units, world, counts, strategy=FSDP, gather=COPY,
                           cap_bytes=cap(world.rank), memory=SLAB)
            return needs, code

        results = self.on_ranks(lambda w: rank_main(w, lambda rank: 20_000), 3)
        self.assertGreater(results[0][0], 20_000)
        self.assertLess(results[2][0], 20_000)
        self.assertEqual([c for _, c in results],
                         [_ffi.ALQ_RESOURCE_EXHAUSTED] * 3)
        results = self.on_ranks(lambda w: rank_main(
            w, lambda rank: 64 if rank == 1 else 0), 3)
        self.assertEqual([c for _, c in results],
                         [_ffi.ALQ_RESOURCE_EXHAUSTED] * 3)

    def test_a_refused_change_is_planned_no_more(self):
        def rank_main(world):
            model = Units(world, [40], strategy=FSDP, gather=COPY)
            model.write(0, 2.0)
            model.plan(strategy=DDP)
            codes = [refusal(model.plan, strategy=ZERO1, cap_bytes=1),
                     refusal(model.commit)]
            values = set(model.read(0)), model.engine.report()["replans"]
            model.engine.close()
            return codes, values

        for codes, values in self.on_ranks(rank_main):
            self.assertEqual(codes, [_ffi.ALQ_RESOURCE_EXHAUSTED,
                                     _ffi.ALQ_FAILED_PRECONDITION])
            self.assertEqual(values, ({2.0}, 0))

    def test_the_slab_in_use_is_no_place_for_the_next_plan(self):
        def rank_main(world):
            model = Units(world, [100], strategy=FSDP, gather=COPY, memory=SLAB)
            block = ctypes.create_string_buffer(1 << 16)
            first = -(-ctypes.addressof(block) // 4096) * 4096
            model.commit(first)
            model.write(0, 7.0)
            codes = []
            for address in (first, first + 4096 - model.report.total_bytes,
                            first + model.report.total_bytes):
                model.plan(strategy=DDP, memory=SLAB)
                codes.append(refusal(model.commit, address))
            values = set(model.read(0))
            model.engine.close()
            return codes, values

        for codes, values in self.on_ranks(rank_main):
            self.assertEqual(codes, [_ffi.ALQ_INVALID_ARGUMENT] * 2 +
                             [_ffi.ALQ_OK])
            self.assertEqual(values, {7.0})

    def test_a_refused_begin_stays_closed(self):
        def rank_main(world):
            model = Units(world, [4, 0], strategy=DDP, memory=INTO)
            model.engine.microbatch(_ffi.ALQ_EVAL)
            nowhere = (ctypes.c_void_p * 1)()
            into = ctypes.cast(nowhere, INTO_FIELD)
            codes = [refusal(model.begin, 0, NOGRAD, into=into),
                     refusal(model.engine.end, model.units[0], NOGRAD),
                     refusal(model.begin, 1, NOGRAD, into=into)]  # is empty
            model.engine.microbatch_end()
            model.engine.close()
            return codes

        self.assertEqual(self.on_ranks(rank_main, 1), [[
            _ffi.ALQ_INVALID_ARGUMENT, _ffi.ALQ_FAILED_PRECONDITION,
            _ffi.ALQ_OK]])

    def test_numbers_at_their_ends(self):
        def rank_main(world):
            model = Units(world, [4], engine=dict(loss_scale=1e308),
                          strategy=DDP)
            model.write(0, 1.0)
            codes = [refusal(model.engine.call, "alq_step_set", steps)
                     for steps in (-1, 2**63 - 1, 2**53)]
            model.engine.microbatch(_ffi.ALQ_TRAIN)
            model.backward(0, 1.0)
            model.engine.microbatch_end()
            # Each rank's weight times the loss scale is finite, the sum is not.
            codes.append(refusal(model.step))
            values = set(model.read(0))
            model.engine.close()
            return codes, values

        bad = _ffi.ALQ_FAILED_PRECONDITION
        self.assertEqual(self.on_ranks(rank_main),
                         [([bad, bad, _ffi.ALQ_OK, bad], {1.0})] * 2)


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

"""Calls in unlucky moments: streams, releases with work in flight, aborts,
ranks that disagree.  Each must end with right numbers or an error that says
why, soon, on all ranks."""

import ctypes
import math
import sys
import time
import unittest

import host
from host import _ffi

FSDP = _ffi.ALQ_STRATEGY_FSDP
COUNT = 8


class Small:
    """Two units of one parameter; each step's gradient is rank + 1."""

    def __init__(self, world, optimizer=None, **plan):
        self.world, self.engine = world, host.Engine(world)
        self.params = [self.engine.add_param(f"w{i}", [COUNT])
                       for i in range(2)]
        self.units = [self.engine.add_unit(f"u{i}", [p])
                      for i, p in enumerate(self.params)]
        desc = host.make(_ffi.alq_optimizer_desc,
                         **(optimizer or dict(kind=_ffi.ALQ_OPTIM_SGD)))
        self.engine.call("alq_optimizer_set", 0, ctypes.byref(desc))
        self.engine.call("alq_engine_plan", ctypes.byref(host.make(
            _ffi.alq_plan_desc, strategy=FSDP, **plan)), None)
        self.engine.call("alq_engine_commit", None)
        for p in self.params:
            self.engine.write(p, (ctypes.c_double * COUNT)(), COUNT)

    def gradients(self, stream=None):
        self.engine.microbatch(_ffi.ALQ_TRAIN)
        for u, p in zip(self.units, self.params):
            view = host.make(_ffi.alq_unit_view)
            self.engine.call("alq_unit_begin", u, _ffi.ALQ_PASS_B, stream,
                             ctypes.byref(view))
            target = (ctypes.c_double * COUNT).from_address(view.grads[0])
            for i in range(COUNT):
                target[i] = self.world.rank + 1.0
            self.engine.call("alq_grad_ready", p, stream)
            self.engine.call("alq_unit_end", u, _ffi.ALQ_PASS_B, stream)
        self.engine.call("alq_microbatch_end", stream)

    def step(self, lr=1.0, stream=None, weight_decay=0.0):
        desc = host.make(_ffi.alq_step_desc,
                         lr=host.array(ctypes.c_double, [lr]),
                         weight_decay=host.array(ctypes.c_double,
                                                 [weight_decay]), n_groups=1)
        self.engine.call("alq_step", ctypes.byref(desc), stream, None)

    def value(self, param=0):
        data = (ctypes.c_double * COUNT)()
        self.engine.read(self.params[param], data, COUNT)
        return data[0]


def refusal(call, *args, **more):
    """The code of the error that the call must end with."""
    try:
        call(*args, **more)
    except host.Refused as refused:
        return refused.code
    return _ffi.ALQ_OK


class Robustness(unittest.TestCase):
    def on_ranks(self, body, ranks=2, **place):
        return host.run_ranks(LIBRARY, ranks, body, **place)

    def test_a_step_on_a_stream(self):
        def rank_main(world):
            stream = _ffi.alq_stream()
            world.library.call("alq_stream_create", world.ctx,
                               ctypes.byref(stream))
            small = Small(world, gather=_ffi.ALQ_GATHER_COPY)
            for _ in range(3):
                small.gradients(ctypes.byref(stream))
                small.step(stream=ctypes.byref(stream))
            world.library.call("alq_stream_sync", world.ctx,
                               ctypes.byref(stream), 0)
            value = small.value()
            small.engine.close()
            return value

        self.assertEqual(self.on_ranks(rank_main), [-4.5, -4.5])

    def test_an_engine_released_with_reductions_in_flight(self):
        def rank_main(world):
            small = Small(world, gather=_ffi.ALQ_GATHER_COPY)
            small.gradients()
            world.library.c.alq_engine_release(small.engine.handle)
            again = Small(world)
            again.gradients()
            again.step()
            value = again.value()
            again.engine.close()
            return value

        self.assertEqual(self.on_ranks(rank_main), [-1.5, -1.5])

    def test_a_buffer_released_with_its_operation_queued(self):
        def rank_main(world):
            call = world.library.call
            stream, group = _ffi.alq_stream(), ctypes.c_void_p()
            call("alq_stream_create", world.ctx, ctypes.byref(stream))
            call("alq_group_world", world.ctx, ctypes.byref(group))
            n = 1 << 16
            out = (ctypes.c_double * (2 * n))()
            for _ in range(3):
                buffer = world.library.make_handle("alq_buffer_alloc",
                                                   world.ctx, 8 * n)
                address = world.library.c.alq_buffer_data(buffer)
                (ctypes.c_double * n).from_address(address)[n - 1] = \
                    world.rank + 5.0
                call("alq_group_all_gather", group, address, out, n,
                     _ffi.ALQ_F64, ctypes.byref(stream), None)
                world.library.c.alq_buffer_release(buffer)
            call("alq_stream_sync", world.ctx, ctypes.byref(stream), 0)
            world.library.c.alq_group_release(group)
            return out[n - 1], out[2 * n - 1]

        self.assertEqual(self.on_ranks(rank_main), [(5.0, 6.0)] * 2)

    def test_abort_wakes_every_group(self):
        def rank_main(world):
            group = ctypes.c_void_p()
            world.library.call("alq_mesh_group", world.mesh, b"dp_shard",
                               ctypes.byref(group))
            begun = time.monotonic()
            if world.rank == 0:
                code = refusal(world.library.call, "alq_group_barrier", group,
                               None, None)
            else:
                time.sleep(0.2)
                world.library.call("alq_abort", world.ctx, b"enough")
                code = refusal(world.library.call, "alq_group_barrier", group,
                               None, None)
            world.library.c.alq_group_release(group)
            world.close = lambda: None  # there is nothing to close in order
            return code, time.monotonic() - begun

        for code, seconds in self.on_ranks(rank_main):
            self.assertIn(code, (_ffi.ALQ_ABORTED, _ffi.ALQ_GROUP_POISONED))
            self.assertLess(seconds, 30)

    def test_a_refused_step_changes_nothing(self):
        def rank_main(world):
            small = Small(world, phases=_ffi.ALQ_PHASE_TRAIN
                          | _ffi.ALQ_PHASE_EVAL | _ffi.ALQ_PHASE_HOLD_ALL)
            small.gradients()
            small.engine.call("alq_unit_hold", small.units[1])
            held = refusal(small.step)
            unchanged = small.value()
            small.engine.call("alq_unit_unhold", _ffi.ALQ_UNIT_ALL)
            nan = refusal(small.step, lr=math.nan)
            decay = refusal(small.step, weight_decay=math.inf)
            small.step()
            value = small.value()
            small.engine.close()
            return held, nan, decay, unchanged, value

        for held, nan, decay, unchanged, value in self.on_ranks(rank_main):
            self.assertEqual(held, _ffi.ALQ_FAILED_PRECONDITION)
            self.assertEqual(nan, _ffi.ALQ_INVALID_ARGUMENT)
            self.assertEqual(decay, _ffi.ALQ_INVALID_ARGUMENT)
            self.assertEqual((unchanged, value), (0.0, -1.5))

    def test_ranks_that_disagree_are_told(self):
        def rank_main(world):
            small = Small(world)
            small.gradients()
            code = refusal(small.step, lr=1.0 + world.rank)
            plan = refusal(Small, world, gather=_ffi.ALQ_GATHER_COPY,
                           optimizer=dict(kind=_ffi.ALQ_OPTIM_SGD,
                                          momentum=0.5 + world.rank / 4))
            value = small.value()
            small.engine.close()
            return code, plan, value

        for code, plan, value in self.on_ranks(rank_main):
            self.assertEqual(code, _ffi.ALQ_RANK_MISMATCH)
            self.assertEqual(plan, _ffi.ALQ_RANK_MISMATCH)
            self.assertEqual(value, 0.0)

    def test_restored_momentum_goes_on(self):
        def rank_main(world):
            momentum = dict(kind=_ffi.ALQ_OPTIM_SGD, momentum=0.5)
            whole = Small(world, momentum)
            for _ in range(4):
                whole.gradients()
                whole.step()
            first = Small(world, momentum)
            for _ in range(2):
                first.gradients()
                first.step()
            second = Small(world, momentum)
            for i, p in enumerate(first.params):
                for what in (_ffi.ALQ_VALUE, _ffi.ALQ_STATE_0):
                    data = (ctypes.c_double * COUNT)()
                    first.engine.call("alq_param_read", p, what, data, 0,
                                      COUNT, 0)
                    second.engine.call("alq_param_write", second.params[i],
                                       what, data, 0, COUNT, 0)
            second.engine.call("alq_step_set", 2)
            for _ in range(2):
                second.gradients()
                second.step()
            values = whole.value(), second.value()
            for small in (whole, first, second):
                small.engine.close()
            return values

        for whole, resumed in self.on_ranks(rank_main):
            self.assertEqual(whole, resumed)
            self.assertNotEqual(whole, 0.0)

    def test_a_short_wait_leaves_the_operation_alone(self):
        def rank_main(world):
            group, work = ctypes.c_void_p(), ctypes.c_void_p()
            stream = _ffi.alq_stream()
            world.library.call("alq_stream_create", world.ctx,
                               ctypes.byref(stream))
            world.library.call("alq_group_world", world.ctx,
                               ctypes.byref(group))
            if world.rank == 1:
                time.sleep(0.5)
            data = (ctypes.c_double * 1)(world.rank + 1.0)
            world.library.call("alq_group_all_reduce", group, data, data, 1,
                               _ffi.ALQ_F64, _ffi.ALQ_SUM,
                               ctypes.byref(stream), ctypes.byref(work))
            short = refusal(world.library.call, "alq_work_wait", work, 10**6)
            world.library.call("alq_work_wait", work, 0)
            world.library.c.alq_work_release(work)
            world.library.c.alq_group_release(group)
            return short, data[0]

        results = self.on_ranks(rank_main)
        self.assertEqual(results[0][0], _ffi.ALQ_DEADLINE_EXCEEDED)
        self.assertEqual([r[1] for r in results], [3.0, 3.0])

    def test_close_keeps_its_own_deadline(self):
        def rank_main(world):
            small = Small(world)
            begun = time.monotonic()
            code = _ffi.ALQ_OK
            if world.rank == 0:
                code = refusal(small.engine.call, "alq_engine_close",
                               300 * 10**6)
            seconds = time.monotonic() - begun
            if world.rank == 1:
                time.sleep(1.0)
            world.library.c.alq_engine_release(small.engine.handle)
            world.close = lambda: None
            return code, seconds

        code, seconds = self.on_ranks(rank_main)[0]
        self.assertEqual(code, _ffi.ALQ_DEADLINE_EXCEEDED)
        self.assertLess(seconds, 20)

    def test_absurd_shapes_and_half_pointers_are_refused(self):
        def rank_main(world):
            engine = host.Engine(world)
            absurd = refusal(engine.add_param, "a", [2**55])
            for i in range(20):
                engine.add_param(f"b{i}", [2**48])
            engine.add_unit("u", list(range(20)))
            plan = refusal(engine.call, "alq_engine_plan", None, None)
            half = host.make(_ffi.alq_param_desc, name=b"x")
            half.struct_size = 12
            pointer = refusal(engine.call, "alq_param_add",
                              ctypes.byref(half), None)
            world.library.c.alq_engine_release(engine.handle)
            return absurd, plan, pointer

        absurd, plan, pointer = self.on_ranks(rank_main, ranks=1)[0]
        self.assertEqual(absurd, _ffi.ALQ_INVALID_ARGUMENT)
        self.assertEqual(plan, _ffi.ALQ_RESOURCE_EXHAUSTED)
        self.assertEqual(pointer, _ffi.ALQ_INVALID_ARGUMENT)


class FailedGathers(unittest.TestCase):
    """A progress thread may have ended a gather, in failure, before its unit
    begins: what lies there then is not lent as if it were new."""

    COUNT, UNITS = 5_000, 3

    def evaluate(self, engine, units, want):
        """What each unit's pass sees: the values, others, or an error."""
        seen = []
        try:
            engine.microbatch(_ffi.ALQ_EVAL)
        except host.Refused:  # gathers are issued here, and one failed by then
            return ["refused"] * len(units)
        for unit in units:
            try:
                view = engine.begin(unit, _ffi.ALQ_PASS_F_NOGRAD)
            except host.Refused:
                seen.append("refused")
                continue
            values = (ctypes.c_double * self.COUNT).from_address(
                view.params[0])
            seen.append("right" if set(values) == {want} else "wrong")
            time.sleep(0.1)  # gathers go on
            engine.end(unit, _ffi.ALQ_PASS_F_NOGRAD)
        engine.microbatch_end()
        return seen

    def on_rank(self, world, hit):
        engine = host.Engine(world)
        params = [engine.add_param(f"w{i}", [self.COUNT])
                  for i in range(self.UNITS)]
        units = [engine.add_unit(f"u{i}", [p]) for i, p in enumerate(params)]
        engine.plan_and_commit(
            strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_COPY,
            prefetch=self.UNITS, max_open=self.UNITS + 1,
            phases=_ffi.ALQ_PHASE_TRAIN | _ffi.ALQ_PHASE_EVAL |
            _ffi.ALQ_PHASE_HOLD_ALL)
        for value in (1.0, 2.0):
            data = (ctypes.c_double * self.COUNT)(*[value] * self.COUNT)
            for p in params:
                engine.write(p, data, self.COUNT)
            if value == 1.0:  # the order of units is known from now on
                self.assertEqual(self.evaluate(engine, units, value),
                                 ["right"] * self.UNITS)
        engine.call("alq_param_touch")
        world.library.call("alq_fault_set", world.ctx,
                           b"coll.data:%d@1=error" % hit)
        return self.evaluate(engine, units, 2.0)

    def test_are_not_lent(self):
        for hit in (1, 2, 3):
            for progress in (_ffi.ALQ_PROGRESS_ON, _ffi.ALQ_PROGRESS_OFF):
                with self.subTest(hit=hit, progress=progress):
                    for seen in host.run_ranks(
                            LIBRARY, 2, lambda w: self.on_rank(w, hit),
                            progress=progress):
                        self.assertNotIn("wrong", seen)
                        self.assertEqual(seen[-1], "refused")


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

"""Another plan for a running engine: the same bits go on, old memory is free,
a plan that is refused changes nothing."""

import ctypes
import os
import random
import sys
import unittest

import host
from host import _ffi
from robustness_test import refusal

SHAPES = [[7, 5], [13], [0], [64, 3], [1]]
F64, BF16, F32 = _ffi.ALQ_F64, _ffi.ALQ_BF16, _ffi.ALQ_F32
COPY, MAP = _ffi.ALQ_GATHER_COPY, _ffi.ALQ_GATHER_MAP
PLANS = {
    "ddp": dict(strategy=_ffi.ALQ_STRATEGY_DDP),
    "zero1": dict(strategy=_ffi.ALQ_STRATEGY_ZERO1),
    "zero2": dict(strategy=_ffi.ALQ_STRATEGY_ZERO2, prefetch=2),
    "fsdp map": dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=MAP),
    "fsdp copy": dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=COPY,
                      max_open=2),
    "slab": dict(strategy=_ffi.ALQ_STRATEGY_FSDP, gather=COPY,
                 memory=_ffi.ALQ_MEMORY_SLAB),
}


def count_of(shape):
    count = 1
    for dim in shape:
        count *= dim
    return count


class Model:
    """Five parameters in three units, two of them sharing one; one frozen."""

    def __init__(self, world, plan, dtype=F64):
        self.world, self.engine = world, host.Engine(world)
        self.params = [self.engine.add_param(f"w{i}", shape, trainable=i != 1,
                                             dtype=dtype)
                       for i, shape in enumerate(SHAPES)]
        p = self.params
        self.units = [self.engine.add_unit("a", [p[0], p[1]]),
                      self.engine.add_unit("b", [p[2], p[3]]),
                      self.engine.add_unit("c", [p[4], p[0]])]
        self.members = [[0, 1], [2, 3], [4, 0]]
        self.dtype, self.slab = dtype, None
        optimizer = host.make(_ffi.alq_optimizer_desc,
                              kind=_ffi.ALQ_OPTIM_ADAMW, **host.ADAMW)
        self.engine.call("alq_optimizer_set", 0, ctypes.byref(optimizer))
        self.replan(plan)
        values = random.Random(5)
        for i, shape in enumerate(SHAPES):
            data = [values.uniform(-1, 1) for _ in range(count_of(shape))]
            self.engine.call("alq_param_write", p[i], _ffi.ALQ_VALUE,
                             host.array(ctypes.c_double, data), 0, len(data),
                             F64)

    def plan(self, plan):
        report = host.make(_ffi.alq_plan_report)
        self.engine.call("alq_engine_plan", ctypes.byref(
            host.make(_ffi.alq_plan_desc, **plan)), ctypes.byref(report))
        return report

    def replan(self, plan):
        report = self.plan(plan)
        old, address = self.slab, None
        if plan.get("memory") == _ffi.ALQ_MEMORY_SLAB:
            self.slab = ctypes.create_string_buffer(report.total_bytes + 4096)
            address = -(-ctypes.addressof(self.slab) // 4096) * 4096
        else:
            self.slab = None
        self.engine.call("alq_engine_commit", address)
        if old is not None:  # ours again
            ctypes.memset(old, 0xff, len(old))

    def gradients(self, step, last=True):
        size = 8 if self.dtype == F64 else 2
        self.engine.microbatch(_ffi.ALQ_TRAIN, last=last)
        for kind in (_ffi.ALQ_PASS_F, _ffi.ALQ_PASS_B):
            order = self.units if kind == _ffi.ALQ_PASS_F else self.units[::-1]
            for unit in order:
                view = self.engine.begin(unit, kind)
                if kind == _ffi.ALQ_PASS_B:
                    for i, member in enumerate(self.members[unit]):
                        self.fill(view.grads[i], member, step, size)
                self.engine.end(unit, kind)
        for i, p in enumerate(self.params):
            if i != 1:
                self.engine.ready(p)
        self.engine.microbatch_end()

    def fill(self, address, member, step, size):
        """Both users of the shared parameter write the same gradient."""
        if not address:
            return
        values = random.Random(step * 100 + member * 10 + self.world.rank)
        count = count_of(SHAPES[member])
        if size == 8:
            target = (ctypes.c_double * count).from_address(address)
            target[:] = [values.uniform(-1, 1) for _ in range(count)]
        else:  # bf16 with exact small values
            target = (ctypes.c_uint16 * count).from_address(address)
            target[:] = [0x3c00 + values.randrange(0, 0x180)
                         for _ in range(count)]

    def step(self, number):
        self.gradients(number)
        return self.engine.step(0.01, weight_decay=0.1, clip=1.0)

    def values(self):
        out = []
        for i, shape in enumerate(SHAPES):
            for what in (_ffi.ALQ_VALUE, _ffi.ALQ_STATE_0, _ffi.ALQ_STATE_1):
                if i == 1 and what != _ffi.ALQ_VALUE:
                    continue
                data = (ctypes.c_double * max(count_of(shape), 1))()
                self.engine.call("alq_param_read", self.params[i], what, data,
                                 0, count_of(shape), F64)
                out.append(bytes(data))
        return out


class Replan(unittest.TestCase):
    def test_bits_go_on_across_plans(self):
        for ranks in (1, 2, 4):
            for dtype in (F64, BF16):
                plans = list(PLANS.values()) if ranks > 1 else [
                    PLANS["ddp"], PLANS["slab"], PLANS["fsdp copy"]]

                def steady(world):
                    model = Model(world, plans[0], dtype)
                    norms = [model.step(s).grad_norm
                             for s in range(2 * len(plans))]
                    result = model.values(), norms
                    model.engine.close()
                    return result

                def changing(world):
                    model, norms = Model(world, plans[0], dtype), []
                    for i, plan in enumerate(plans):
                        if i > 0:
                            model.replan(plan)
                        for s in (2 * i, 2 * i + 1):
                            report = model.step(s)
                            self.assertEqual(report.step, s + 1)
                            norms.append(report.grad_norm)
                    self.assertEqual(model.engine.report()["replans"],
                                     len(plans) - 1)
                    result = model.values(), norms
                    model.engine.close()
                    return result

                with self.subTest(ranks=ranks, dtype=dtype):
                    want = host.run_ranks(LIBRARY, ranks, steady)
                    self.assertEqual(host.run_ranks(LIBRARY, ranks, changing),
                                     want)

    def test_the_engine_goes_on_until_the_commit(self):
        def rank_main(world):
            model = Model(world, PLANS["ddp"])
            model.step(0)
            model.plan(PLANS["fsdp copy"])
            model.step(1)  # still under the old plan
            before = model.values()
            model.plan(PLANS["zero1"])  # the last plan counts
            model.engine.call("alq_engine_commit", None)
            self.assertEqual(model.values(), before)
            model.step(2)
            model.engine.close()
            return True

        self.assertEqual(host.run_ranks(LIBRARY, 2, rank_main), [True, True])

    def test_more_microbatches_than_the_first_plan_had(self):
        def rank_main(world):
            model = Model(world, PLANS["zero2"])
            model.step(0)
            self.assertEqual(
                refusal(model.engine.microbatch, _ffi.ALQ_TRAIN, last=False),
                _ffi.ALQ_FAILED_PRECONDITION)
            model.replan(dict(PLANS["zero2"], microbatches=2))
            model.gradients(1, last=False)
            model.gradients(2)
            report = model.engine.step(0.01)
            model.engine.close()
            return report.weight_sum

        self.assertEqual(host.run_ranks(LIBRARY, 2, rank_main), [4.0, 4.0])

    def test_not_within_a_step_and_not_while_held(self):
        def rank_main(world):
            model = Model(world, dict(
                PLANS["fsdp copy"],
                phases=_ffi.ALQ_PHASE_TRAIN | _ffi.ALQ_PHASE_HOLD_ALL))
            codes = []
            model.engine.microbatch(_ffi.ALQ_TRAIN)
            codes.append(refusal(model.plan, PLANS["ddp"]))
            model.engine.microbatch_end()
            codes.append(refusal(model.plan, PLANS["ddp"]))  # a step is due
            model.engine.step(0.0)
            model.engine.call("alq_unit_hold", _ffi.ALQ_UNIT_ALL)
            codes.append(refusal(model.plan, PLANS["ddp"]))
            model.engine.call("alq_unit_unhold", _ffi.ALQ_UNIT_ALL)
            model.plan(PLANS["ddp"])
            model.engine.microbatch(_ffi.ALQ_TRAIN)
            codes.append(refusal(model.engine.call, "alq_engine_commit", None))
            model.engine.microbatch_end()
            model.engine.step(0.0)
            model.replan(PLANS["ddp"])
            model.step(5)
            model.engine.close()
            return codes

        want = [_ffi.ALQ_FAILED_PRECONDITION] * 4
        self.assertEqual(host.run_ranks(LIBRARY, 2, rank_main), [want, want])

    def test_a_refused_slab_leaves_all_ranks_with_the_old_plan(self):
        def rank_main(world):
            model = Model(world, PLANS["zero1"])
            model.step(0)
            model.plan(PLANS["slab"])
            slab = ctypes.create_string_buffer(1 << 20)
            address = -(-ctypes.addressof(slab) // 4096) * 4096
            code = refusal(model.engine.call, "alq_engine_commit",
                           address if world.rank else address + 8)
            model.step(1)
            values = model.values()
            model.engine.close()
            return code, values

        def steady(world):
            model = Model(world, PLANS["zero1"])
            model.step(0)
            model.step(1)
            values = model.values()
            model.engine.close()
            return values

        results = host.run_ranks(LIBRARY, 2, rank_main)
        self.assertEqual([code for code, _ in results],
                         [_ffi.ALQ_INVALID_ARGUMENT, _ffi.ALQ_ABORTED])
        self.assertEqual([v for _, v in results],
                         host.run_ranks(LIBRARY, 2, steady))

    def test_ranks_that_plan_differently_are_told(self):
        def rank_main(world):
            model = Model(world, PLANS["ddp"])
            code = refusal(model.plan, PLANS["zero1" if world.rank else "ddp"])
            model.step(0)  # nothing happened
            model.engine.close()
            return code

        self.assertEqual(host.run_ranks(LIBRARY, 2, rank_main),
                         [_ffi.ALQ_RANK_MISMATCH] * 2)

    @unittest.skipIf(host.ON_CUDA, "the fault point is shared memory's")
    def test_a_failure_while_values_move_is_an_error_on_all_ranks(self):
        def rank_main(world):
            model = Model(world, PLANS["fsdp copy"])
            model.step(0)
            model.plan(PLANS["ddp"])
            if world.rank == 1:
                world.library.call("alq_fault_set", world.ctx,
                                   b"coll.data:6=error")
            code = refusal(model.engine.call, "alq_engine_commit", None)
            world.library.c.alq_engine_release(model.engine.handle)
            world.close = lambda: None
            return code != _ffi.ALQ_OK

        self.assertEqual(host.run_ranks(LIBRARY, 2, rank_main), [True, True])

    def test_many_changes_keep_no_memory(self):
        def rank_main(world):
            model = Model(world, PLANS["ddp"])
            plans = list(PLANS.values())
            for i in range(12):
                model.replan(plans[i % len(plans)])
            before = len(os.listdir("/proc/self/fd"))
            for i in range(60):
                model.replan(plans[i % len(plans)])
            model.step(0)
            after = len(os.listdir("/proc/self/fd"))
            model.engine.close()
            return after - before

        for grown in host.run_ranks(LIBRARY, 2, rank_main):
            self.assertLessEqual(grown, 4)


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

"""The gradient norm of a step: counted where gradients are summed, or from what
the caller made of them.  Exact sums of squares in Python are the oracle.
Usage: norm_test.py LIBRARY [unittest options]
"""

import ctypes
import fractions
import math
import sys
import unittest

import host
import numpy
from host import _ffi

DDP, ZERO1, ZERO2, FSDP, HSDP = (
    _ffi.ALQ_STRATEGY_DDP, _ffi.ALQ_STRATEGY_ZERO1, _ffi.ALQ_STRATEGY_ZERO2,
    _ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_HSDP)
COPY, MAP = _ffi.ALQ_GATHER_COPY, _ffi.ALQ_GATHER_MAP
EACH, LAST = _ffi.ALQ_DEFER_EACH, _ffi.ALQ_DEFER_LAST
PLANS = [dict(strategy=DDP), dict(strategy=ZERO1), dict(strategy=ZERO2),
         dict(strategy=FSDP, gather=COPY), dict(strategy=FSDP, gather=MAP),
         dict(strategy=HSDP)]
# Travel in a slot; one block; several pieces and blocks, ragged; past caches
# where the engine is larger than these.
COUNTS = [5, 3001, 262143, 4500007]


def gradient(rank, microbatch, unit):
    """Small integers times a power of two: sums are exact in f32."""
    random = numpy.random.default_rng([rank, microbatch, unit])
    return (random.integers(-512, 512, COUNTS[unit]) / 64).astype("f4")


def exact_norm(parts):
    squares = sum(fractions.Fraction(float(numpy.dot(
        p.astype("f8"), p.astype("f8")))) for p in parts)
    return math.sqrt(squares)


class Model:
    def __init__(self, world, microbatches, plan):
        self.engine = host.Engine(world)
        self.world = world
        self.params = [self.engine.add_param(f"w{i}", [n], dtype=_ffi.ALQ_F32)
                       for i, n in enumerate(COUNTS)]
        self.units = [self.engine.add_unit(f"u{i}", [p])
                      for i, p in enumerate(self.params)]
        self.engine.plan_and_commit(microbatches=microbatches, **plan)
        for p, n in zip(self.params, COUNTS):
            zeros = numpy.zeros(n, "f4")
            self.engine.write(p, zeros.ctypes.data, n)
        self.views = [self.shard(p) for p in self.params]

    def shard(self, param):
        shard = host.make(_ffi.alq_shard)
        self.engine.call("alq_shard_view", param, _ffi.ALQ_GRAD,
                         ctypes.byref(shard))
        if shard.count == 0:
            return numpy.empty(0, "f4")
        return numpy.ctypeslib.as_array(
            ctypes.cast(shard.data, ctypes.POINTER(ctypes.c_float)),
            (shard.count,))

    def backward(self, microbatch, last):
        self.engine.microbatch(_ffi.ALQ_TRAIN, last=last)
        for u in reversed(range(len(COUNTS))):
            view = self.engine.begin(self.units[u], _ffi.ALQ_PASS_B)
            target = numpy.ctypeslib.as_array(
                ctypes.cast(view.grads[0], ctypes.POINTER(ctypes.c_float)),
                (COUNTS[u],))
            value = gradient(self.world.rank, microbatch, u)
            target[:] = target + value if view.betas[0] else value
            self.engine.ready(self.params[u])
            self.engine.end(self.units[u], _ffi.ALQ_PASS_B)
        self.engine.microbatch_end()

    def read_no_gradient(self):
        """Waits for the reductions, and says that gradients are looked at."""
        self.engine.call("alq_param_read", self.params[0], _ffi.ALQ_GRAD,
                         None, 0, 0, 0)


class Norm(unittest.TestCase):
    def test_it_is_that_of_the_sum_wherever_it_is_counted(self):
        def rank_main(world, microbatches, plan):
            model = Model(world, microbatches, plan)
            norms = []
            for _ in range(2):
                for m in range(microbatches):
                    model.backward(m, m + 1 == microbatches)
                norms.append(model.engine.step(0.0).grad_norm)
            model.engine.close()
            return norms

        for ranks, microbatches in ((2, 1), (3, 1), (4, 2)):
            sums = [sum(gradient(r, m, u) for r in range(ranks)
                        for m in range(microbatches))
                    for u in range(len(COUNTS))]
            wanted = exact_norm(sums) / (ranks * microbatches)
            for plan in PLANS:
                if plan["strategy"] == HSDP and ranks != 4:
                    continue
                mesh = ("dp_replicate=2,dp_shard=2"
                        if plan["strategy"] == HSDP else "")
                for defer in (EACH, LAST)[:microbatches]:
                    with self.subTest(ranks=ranks, defer=defer, **plan):
                        found = host.run_ranks(
                            LIBRARY, ranks, lambda world: rank_main(
                                world, microbatches, dict(plan, defer=defer)),
                            mesh=mesh)
                        for norms in found:
                            self.assertEqual(norms, found[0])
                            for norm in norms:
                                self.assertAlmostEqual(norm / wanted, 1, 15)

    def test_a_gradient_that_the_caller_changed_counts_as_it_is(self):
        def rank_main(world, plan):
            model = Model(world, 1, plan)
            model.backward(0, True)
            model.read_no_gradient()
            plain = [v.copy() for v in model.views]
            if world.rank == 1 or plan["strategy"] == DDP:
                model.views[2] *= 4  # whole gradients: alike everywhere
            changed = model.engine.step(0.0).grad_norm
            model.backward(0, True)  # the next step counts on its own again
            after = model.engine.step(0.0).grad_norm
            model.backward(0, True)
            model.read_no_gradient()
            if world.rank == 1:
                model.views[2][:] = math.nan
            report = model.engine.step(0.0)
            model.engine.close()
            return changed, after, report.skipped, report.bad_param, plain

        for plan in PLANS[:5]:
            with self.subTest(**plan):
                ranks = host.run_ranks(LIBRARY, 2,
                                       lambda world: rank_main(world, plan))
                sums = [sum(gradient(r, 0, u) for r in range(2))
                        for u in range(len(COUNTS))]
                wanted = exact_norm(sums) / 2
                own = ranks[1][4][2]
                whole = plan["strategy"] == DDP
                more = sums[2] if whole else own
                changed = math.sqrt(
                    (wanted * 2) ** 2 + 15 * exact_norm([more]) ** 2) / 2
                for norm, after, skipped, bad, _ in ranks:
                    self.assertAlmostEqual(norm / changed, 1, 13)
                    self.assertAlmostEqual(after / wanted, 1, 15)
                    self.assertEqual((skipped, bad), (1, 2))


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

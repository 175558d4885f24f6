"""Ranks with different numbers of microbatches: with join, the bits of one rank
that has them all.  What goes wrong is in join_fault_test.py.

Usage: join_test.py LIBRARY [unittest options]
"""

import sys
import time
import unittest

import host
from host import _ffi
from join_model import (COPY, DDP, EACH, EVAL, FSDP, LAST, MOST, ONE_AXIS, R,
                        S, TRAIN, Case, Model, Ragged, splits)
from robustness_test import refusal

HSDP, CUSTOM = _ffi.ALQ_STRATEGY_HSDP, _ffi.ALQ_STRATEGY_CUSTOM
BOTH = S | R
TWO_AXES = {
    "hsdp": (dict(strategy=HSDP), {}),
    "states over both": (dict(strategy=CUSTOM, param_axes=S, grad_axes=S,
                              state_axes=BOTH, gather=COPY), {}),
    "each unit another": (dict(strategy=HSDP),
                          {0: (0, 0, BOTH), 3: (0, 0, BOTH),
                           1: (BOTH, BOTH, BOTH), 2: (S, BOTH, BOTH)}),
}


class Bits(Case):
    def check(self, all_steps, plan, places=None, mesh="", push=False):
        """Each element of all_steps: steps of a run, in one world."""
        ranks = len(all_steps[0][0].counts)

        def rank_main(world):
            model = Model(world, dict(plan, microbatches=MOST), places, push)
            out = []
            for steps in all_steps:
                model.start()
                reports = [step.run(model) for step in steps]
                out.append(([r for r in reports if isinstance(r, tuple)],
                            model.bits()))
                for step, report in zip(steps, reports):
                    if not isinstance(report, tuple):
                        served = step.most - step.counts[world.rank]
                        assert (report.microbatches, report.evals,
                                report.steps, report.left) == (served, 0, 1, 0)
            model.engine.close()
            return out

        results = self.on_ranks(ranks, rank_main, mesh)
        for i, steps in enumerate(all_steps):
            reports, bits = self.alone(steps, push)
            for rank in range(ranks):
                with self.subTest(counts=[s.counts for s in steps], rank=rank):
                    mine = [r for r, s in zip(reports, steps)
                            if s.counts[rank] == s.most]
                    self.assertEqual(results[rank][i], (mine, bits))

    def test_every_split_of_7_over_3_ranks(self):
        for name, plan in ONE_AXIS.items():
            for defer in (EACH, LAST):
                with self.subTest(name, defer=defer):
                    self.check([[Ragged(counts, defer == EACH)]
                                for counts in splits(7, 3)],
                               dict(plan, defer=defer))

    def test_every_split_over_replicas_and_mixtures(self):
        for each in (True, False):
            defer = EACH if each else LAST
            every = splits(7, 3)
            with self.subTest("hsdp", defer=defer):
                self.check([[Ragged(c, each, 1)] for c in every],
                           dict(strategy=HSDP, defer=defer), None,
                           "dp_replicate=3,dp_shard=1")
            with self.subTest("units placed apart", defer=defer):
                self.check([[Ragged(c, each)] for c in every],
                           dict(strategy=FSDP, defer=defer, prefetch=2),
                           {0: (0, 0, 0), 3: (0, 0, 0), 1: (0, S, S)})

    def test_two_axes_over_4_ranks(self):
        some = [c for i, c in enumerate(splits(7, 4)) if i % 9 == 0]
        for name, (plan, places) in TWO_AXES.items():
            for each in (True, False):
                with self.subTest(name, each=each):
                    self.check([[Ragged(c, each, 2)] for c in some],
                               dict(plan, defer=EACH if each else LAST),
                               places, "dp_replicate=2,dp_shard=2")

    def test_the_default_deferral_pushed_gradients_progress_threads(self):
        some = splits(5, 3)[::3]
        for name, each in (("ddp", False), ("zero1", False), ("zero2", True),
                           ("fsdp copy", True), ("fsdp map", True)):
            for push in (False, True):
                with self.subTest(name, push=push):
                    plan = dict(ONE_AXIS[name], max_open=2 * push,
                                progress=_ffi.ALQ_PROGRESS_ON if push else
                                _ffi.ALQ_PROGRESS_OFF)
                    self.check([[Ragged(c, each)] for c in some], plan,
                               push=push)

    def test_ragged_over_several_steps(self):
        runs = [[(3, 2, 2), (1, 3, 2), (2, 2, 2), (0, 0, 4)],
                [(0, 1, 0), (1, 0, 0), (0, 0, 1)]]
        for name, plan in ONE_AXIS.items():
            for defer in (EACH, LAST):
                with self.subTest(name, defer=defer):
                    self.check([[Ragged(c, defer == EACH) for c in run]
                                for run in runs], dict(plan, defer=defer))


class Sequences(Case):
    def test_ranks_with_different_numbers_of_steps(self):
        """Rank r takes r + 1 steps of two microbatches, with an evaluation
        after each and a read; the others serve."""
        for name, plan in ONE_AXIS.items():
            each = name not in ("ddp", "zero1")
            steps = [Ragged(tuple(2 if r >= s else 0 for r in range(3)), each)
                     for s in range(3)]

            def rank_main(world):
                model = Model(world, dict(plan, microbatches=2))
                seen = []
                for s in range(world.rank + 1):
                    for m in range(2):
                        model.microbatch(steps[s].numbers[world.rank, m],
                                         m == 1)
                    model.step()
                    seen.append((model.evaluate(), model.bits()))
                report = model.join()
                served = (report.microbatches, report.evals, report.steps,
                          report.left)
                after = model.evaluate(), model.bits()
                model.engine.close()
                return seen, served, after

            with self.subTest(name):
                results = self.on_ranks(3, rank_main)
                for rank, (seen, served, after) in enumerate(results):
                    missed = 2 - rank
                    evals = 0 if name == "ddp" else missed
                    self.assertEqual(served, (2 * missed, evals, missed, 0))
                    self.assertEqual(seen, results[2][0][:rank + 1])
                    self.assertEqual(after, results[2][0][2])
                    self.assertEqual(after[1], self.alone(steps)[1])

    def test_leave_ends_join_in_the_middle_of_a_step(self):
        """Ranks out of data come back for the step that they all take."""
        ragged = Ragged((3, 1, 2), True)

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["fsdp copy"], microbatches=3))
            for m in range(ragged.counts[world.rank]):
                model.microbatch(ragged.numbers[world.rank, m], m == 2)
            call = "alq_join_leave" if world.rank == 0 else "alq_join_enter"
            report = model.join(call)
            step, bits = model.step(), model.bits()
            model.engine.close()
            return (report.microbatches, report.steps, report.left,
                    report.begun, report.last), step, bits

        reports, bits = self.alone([ragged])
        for rank, result in enumerate(self.on_ranks(3, rank_main)):
            served = 3 - ragged.counts[rank]
            self.assertEqual(result, ((served, 0, 1, 3, 1), reports[0], bits))

    def test_enter_and_leave_without_need(self):
        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["fsdp copy"], microbatches=1))
            left = []
            for i in range(5):
                left.append(model.join("alq_join_enter").left)
                left.append(model.join("alq_join_leave").left)
                model.microbatch(world.rank, True)
                model.step()
            bits = model.bits()
            model.engine.close()
            return left, bits

        for ranks in (1, 3):
            for left, _ in self.on_ranks(ranks, rank_main):
                self.assertEqual(left, [0, 1] * 5)

    def test_nobody_knew_the_last_microbatch(self):
        """All enter, then end the step with a microbatch without passes."""
        ragged = Ragged((2, 0, 3), False)

        def alone(world):
            plan = ragged.plan()
            model = Model(world, dict(plan, microbatches=6,
                                      nesting=b"2+3+1"))
            for number in range(5):
                model.microbatch(number, False)
            return finish(model)

        def finish(model):
            model.engine.microbatch(TRAIN, 0.0, True)
            model.engine.microbatch_end()
            step, bits = model.step(), model.bits()
            model.engine.close()
            return step, bits

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["zero1"], microbatches=4))
            for m in range(ragged.counts[world.rank]):
                model.microbatch(ragged.numbers[world.rank, m], False)
            model.join()
            return finish(model)

        self.assertEqual(self.on_ranks(3, rank_main),
                         self.on_ranks(1, alone) * 3)

    def test_a_bad_gradient_is_skipped_by_all(self):
        for name in ("ddp", "zero2", "fsdp map"):
            for spoil in (0, 3):
                ragged = Ragged((1, 3, 2), False)

                def rank_main(world):
                    model = Model(world, dict(ONE_AXIS[name], defer=LAST,
                                              microbatches=3))
                    before = model.bits()
                    report = ragged.run(model, spoil)
                    values = model.evaluate()
                    steps = model.engine.report()["steps"]
                    model.start()
                    good = ragged.run(model)
                    bits = model.bits()
                    model.engine.close()
                    return report, steps, values, before, good, bits

                with self.subTest(name, spoil=spoil):
                    results = self.on_ranks(3, rank_main)
                    self.assertEqual(results[1][0][2:], (0, 1))
                    self.assertEqual({r[1] for r in results}, {0})
                    self.assertEqual(len({r[2] for r in results}), 1)
                    for result in results:
                        self.assertEqual(result[5], self.alone([ragged])[1])

    def test_a_step_that_all_refuse_is_the_callers_to_handle(self):
        """The followers stay, whatever the caller does next."""
        ragged = Ragged((2, 0, 2), True)

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["fsdp copy"], microbatches=2))
            code = _ffi.ALQ_OK
            if world.rank != 1:
                model.microbatch(0, True)
                code = refusal(model.engine.step, 0.1 * (1 + world.rank))
            report = ragged.run(model)
            bits = model.bits()
            model.engine.close()
            return code, bits, getattr(report, "steps", None)

        results = self.on_ranks(3, rank_main)
        self.assertEqual([r[0] for r in results],
                         [_ffi.ALQ_RANK_MISMATCH, _ffi.ALQ_OK,
                          _ffi.ALQ_RANK_MISMATCH])
        self.assertEqual([r[2] for r in results], [None, 2, None])
        for result in results:
            self.assertEqual(result[1], self.alone([ragged])[1])

    def test_thousands_of_calls_ahead(self):
        """A rank that nothing holds back waits for the slowest when its log is
        full; nothing is lost."""
        count = 1200  # of 6 calls each that others follow

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["ddp"], defer=LAST,
                                      microbatches=count))
            if world.rank == 1:
                time.sleep(0.3)
            for m in range(count if world.rank != 2 else 3):
                model.engine.microbatch(TRAIN, 1.0, m + 1 == count)
                model.engine.microbatch_end()
            report = model.join()
            model.step()
            model.engine.close()
            return report.microbatches

        self.assertEqual(self.on_ranks(3, rank_main), [0, 0, count - 3])

    def test_passes_of_one_rank_that_need_no_other(self):
        """Replicated parameters: a rank may evaluate alone."""
        ragged = Ragged((1, 2, 0), False)

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["ddp"], microbatches=2))
            model.engine.call("alq_param_touch")
            for _ in range(1000 if world.rank == 0 else 0):
                model.engine.microbatch(EVAL)
                for unit in range(4):
                    model.engine.begin(unit, _ffi.ALQ_PASS_F_NOGRAD)
                    model.engine.end(unit, _ffi.ALQ_PASS_F_NOGRAD)
                model.engine.microbatch_end()
            model.bits()
            ragged.run(model)
            bits = model.bits()
            model.engine.close()
            return bits

        self.assertEqual(self.on_ranks(3, rank_main),
                         [self.alone([ragged])[1]] * 3)


if __name__ == "__main__":
    Case.library = host.Library(sys.argv.pop(1))
    unittest.main()

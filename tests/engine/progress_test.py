"""The progress thread: where it is decided, what says so, that it can be
overruled, and that the same numbers come out."""

import os
import sys
import unittest

import host
from host import _ffi
from robustness_test import Small, refusal

ON, OFF, AUTO = (_ffi.ALQ_PROGRESS_ON, _ffi.ALQ_PROGRESS_OFF,
                 _ffi.ALQ_PROGRESS_AUTO)
CORES = len(os.sched_getaffinity(0))


def progress_threads():
    count = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm", encoding="ascii") as name:
                count += name.read().strip() == "alq-progress"
        except FileNotFoundError:
            pass  # ended meanwhile
    return count


class Progress(unittest.TestCase):
    def reports(self, ranks, plan, **place):
        """The report of each rank's engine after a step, and its result."""
        def rank_main(world):
            small = Small(world, gather=_ffi.ALQ_GATHER_COPY, **plan)
            small.gradients()
            small.step()
            report, value = small.engine.report(), small.value()
            threads = progress_threads()
            small.engine.close()
            return report, value, threads

        results = host.run_ranks(LIBRARY, ranks, rank_main, **place)
        mean = sum(range(1, ranks + 1)) / ranks
        for _, value, _ in results:
            self.assertEqual(value, -mean)
        return [report for report, _, _ in results], results[0][2]

    def test_where_every_core_has_a_rank_it_is_off(self):
        reports, threads = self.reports(CORES, {})
        for report in reports:
            self.assertFalse(report["progress_thread"])
            self.assertEqual(report["progress_reason"], "every core has a rank")
        self.assertEqual(threads, 0)

    @unittest.skipIf(CORES < 2, "needs an idle core")
    def test_where_cores_are_idle_it_is_measured_and_agreed_on(self):
        # Each rank believes to be alone on its host.
        reports, _ = self.reports(2, {}, local_size=1)
        for report in reports:
            self.assertEqual(report["progress_reason"], "measured")
            self.assertGreaterEqual(report["progress_hidden"], 0)
            self.assertLessEqual(report["progress_hidden"], 1)
            self.assertEqual(report["progress_thread"],
                             report["progress_hidden"] >= 0.5)
        self.assertEqual(reports[0]["progress_hidden"],
                         reports[1]["progress_hidden"])

    def test_a_slow_wire_turns_it_on(self):
        reports, _ = self.reports(2, {}, hints=b"throttle_mb_per_s=1000")
        for report in reports:
            self.assertTrue(report["progress_thread"])
            self.assertEqual(report["progress_reason"],
                             "the wire is slower than memory")

    def test_the_plan_overrules(self):
        for want in (ON, OFF):
            reports, threads = self.reports(2, dict(progress=want),
                                            local_size=1)
            for report in reports:
                self.assertEqual(report["progress_thread"], want == ON)
                self.assertEqual(report["progress_reason"], "asked for")
            self.assertEqual(threads > 0, want == ON)

    def test_the_context_overrules_and_a_contradiction_is_refused(self):
        reports, _ = self.reports(2, {}, progress=ON)
        self.assertTrue(all(r["progress_thread"] for r in reports))

        def rank_main(world):
            return refusal(Small, world, progress=ON)

        self.assertEqual(
            host.run_ranks(LIBRARY, 2, rank_main, progress=OFF),
            [_ffi.ALQ_FAILED_PRECONDITION] * 2)

    def test_the_last_engine_of_a_context_decides(self):
        def rank_main(world):
            seen = []
            for want in (ON, OFF, ON, AUTO):
                small = Small(world, progress=want)
                small.gradients()
                small.step()
                seen.append((small.value(),
                             small.engine.report()["progress_thread"]))
                small.engine.close()
            return seen

        for seen in host.run_ranks(LIBRARY, CORES, rank_main):
            self.assertEqual([on for _, on in seen], [True, False, True, False])
            self.assertEqual({value for value, _ in seen}, {-(CORES + 1) / 2})

    def test_ranks_that_ask_for_different_things_are_told(self):
        def rank_main(world):
            return refusal(Small, world, progress=ON if world.rank else OFF)

        self.assertEqual(host.run_ranks(LIBRARY, 2, rank_main),
                         [_ffi.ALQ_RANK_MISMATCH] * 2)


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop())
    unittest.main(verbosity=1)

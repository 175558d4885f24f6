"""Engine cells on CUDA over the stand-ins have the bits of the CPU device.

Values, optimizer states, gradients, norms, reports and what the passes saw, under
random delays of all streams.  Says "double": nothing here ran on a GPU.
Cells mostly wait, so some of them run side by side, in processes.
Usage: cells_test.py LIBRARY OPS DOUBLES IMAGE SCHEDULES [unittest options]
SCHEDULES: seeds per cell; "sample": two of twenty, others in every cell.
CUDA_ONLY in the environment: cells with this in their names.
"""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import suite  # noqa: E402
from cells import BY_NAME, CELLS  # noqa: E402

WORKERS = 5
TIMEOUT_S = 1700


def seeds_of(number, schedules):
    if schedules == "sample":
        return [1 + number % 20, 1 + (number + 7) % 20]
    return range(1, 1 + int(schedules))


def worker(names):
    """Prints a line per run: ok, or what differs."""
    part = suite.Suite(*PATHS)
    for name in names:
        cell = BY_NAME[name]
        expected = suite.comparable(part.run(cell, "cpu"), cell)
        for seed in seeds_of(CELLS.index(cell), SCHEDULES):
            try:
                got = suite.comparable(part.run(cell, "cuda", seed), cell)
            except (AssertionError, TimeoutError) as error:
                print(f"BAD {name}, seed {seed}: {error}", flush=True)
                continue
            if got != expected:
                print(f"BAD {name}, seed {seed}: {got}, not {expected}",
                      flush=True)
            elif part.violations() != 0:
                print(f"BAD {name}, seed {seed}: violations", flush=True)
            else:
                print("OK", flush=True)


class Cells(unittest.TestCase):
    def test_bits_of_the_cpu_device(self):
        only = os.environ.get("CUDA_ONLY", "")
        chosen = [c.name for c in CELLS if only in c.name]
        runs = sum(len(seeds_of(CELLS.index(BY_NAME[n]), SCHEDULES))
                   for n in chosen)
        parts = [chosen[i::WORKERS] for i in range(WORKERS)]
        children = [subprocess.Popen(
            [sys.executable, "-B", __file__, *PATHS, SCHEDULES, "worker", *part],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for part in parts if part]
        try:
            ended = [(c.communicate(timeout=TIMEOUT_S), c.returncode)
                     for c in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        lines = [line for (out, _), _ in ended for line in out.splitlines()]
        bad = [line for line in lines if line != "OK"]
        self.assertEqual(bad, [])
        for (_, errors), code in ended:
            self.assertEqual(code, 0, errors)
        self.assertEqual(len(lines), runs)
        print(f"double: {len(chosen)} cells, {runs} runs with equal bits")
        if not only:
            self.assertGreaterEqual(len(chosen), 30)


if __name__ == "__main__":
    PATHS, SCHEDULES = sys.argv[1:5], sys.argv[5]
    if sys.argv[6:7] == ["worker"]:
        worker(sys.argv[7:])
    else:
        unittest.main(argv=sys.argv[:1] + sys.argv[6:])

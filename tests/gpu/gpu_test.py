"""The GPU test program over the stand-ins: all of it passes, and it sees what
goes wrong.

Usage: gpu_test.py GPU_TEST DOUBLES IMAGE
"""

import json
import os
import subprocess
import sys
import unittest

PROGRAM, DOUBLES, IMAGE = (os.path.abspath(p) for p in sys.argv[1:4])


def run(*what, mutate="", delay_us=20):
    hints = {"cuda_library": f"{DOUBLES}/libcuda.so.1",
             "nccl_library": f"{DOUBLES}/libnccl.so.2", "cuda_image": IMAGE}
    done = subprocess.run(
        [PROGRAM, *what], capture_output=True, text=True, timeout=100,
        check=False, env={
            **os.environ, "ALIQUOT_DOUBLE_DELAY_US": str(delay_us),
            "ALIQUOT_DOUBLE_MUTATE": mutate,
            "ALIQUOT_HINTS": ";".join(f"{k}={v}" for k, v in hints.items())})
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, lines, done.stderr


class GpuTest(unittest.TestCase):
    def passes(self, *what):
        code, lines, err = run(*what)
        bad = [line for line in lines if line["status"] == "FAILED"]
        self.assertEqual((code, bad), (0, []), err)
        return [line["check"] for line in lines]

    def sees(self, part, *what, **faults):
        code, lines, err = run(*what, **faults)
        self.assertNotEqual(code, 0, (faults, err))
        bad = [line["check"] for line in lines if line["status"] == "FAILED"]
        self.assertTrue(any(part in check for check in bad), (faults, bad, err))

    def test_parity(self):
        checks = self.passes("parity")
        self.assertEqual(len(checks), len(set(checks)))
        for part in ("fill", "copy", "cast bf16 to f64 scaled unaligned",
                     "accumulate f16 into f64", "adamw f32, model bf16",
                     "sgd f64", "norm f16", "finite bf16", "decide", "stamp"):
            self.assertTrue(any(part in check for check in checks), part)

    def test_streams(self):
        self.assertEqual(self.passes("streams"),
                         ["device", "streams and events", "capture"])

    def test_nccl(self):
        for ranks in ("1", "2", "3"):
            self.assertEqual(len(self.passes("nccl", ranks)), 2)

    def test_nothing_is_measured_here(self):
        _, lines, _ = run("bandwidth")
        self.assertEqual(lines[-1]["status"], "SKIPPED")
        self.assertNotIn("gb_per_s", json.dumps(lines))

    def test_sees_wrong_kernels(self):
        for kernel, check in (("alq_fill", "fill"), ("alq_cast", "cast"),
                              ("alq_accumulate", "accumulate"),
                              ("alq_adamw", "adamw"), ("alq_sgd", "sgd"),
                              ("alq_norm", "norm")):
            for fault in ("short_tail:2", "drop_launch:2"):
                self.sees(check, "parity", mutate=f"name={kernel},{fault}")
        self.sees("finite", "parity", mutate="name=alq_finite,drop_launch:2")
        self.sees("cast", "parity", mutate="name=alq_cast,swap_arguments:1")
        self.sees("decide", "parity", mutate="name=alq_decide,drop_launch:1")
        self.sees("", "parity", mutate="short_copy:30")

    def test_sees_lost_order(self):
        """Of 40 waits one is lost: a race, so not every loss is noticed."""
        for wait in range(4, 40, 3):
            code, lines, _ = run("streams", mutate=f"drop_wait:{wait}",
                                 delay_us=5000)
            if code != 0:
                break
        self.assertTrue(any("streams" in line["check"] for line in lines
                            if line["status"] == "FAILED"), lines)
        self.sees("capture", "streams",
                  mutate="name=alq_accumulate,drop_launch:21")

    def test_says_what_is_missing(self):
        done = subprocess.run(
            [PROGRAM, "streams"], capture_output=True, text=True, timeout=60,
            check=False, env={
                **os.environ,
                "ALIQUOT_HINTS": "cuda_library=/nowhere/libcuda.so.1"})
        self.assertEqual(done.returncode, 2)
        line = json.loads(done.stdout)
        self.assertEqual(line["status"], "FAILED")
        self.assertIn("/nowhere/libcuda.so.1", line["why"])
        self.assertEqual(subprocess.run([PROGRAM, "nccl", "0"], check=False,
                                        capture_output=True, timeout=60)
                         .returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

"""scripts/gpu_check: what it packs is small and complete, and the packed tree
checks itself over the stand-ins.

Usage: gpu_check_test.py BUILD DOUBLES HAS_NVCC
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD, DOUBLES = (os.path.abspath(p) for p in sys.argv[1:3])
HAS_NVCC = sys.argv[3] in ("1", "ON", "TRUE")
MOST_BYTES = 64 << 20
HAS_DRIVER = os.path.exists("/dev/nvidiactl")


def run(command, env=None):
    return subprocess.run(
        [sys.executable, "-B", *command], capture_output=True, text=True,
        timeout=150, check=False, cwd="/", env={**os.environ, **(env or {})})


class GpuCheck(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory(prefix="gpu-check-test-")
        cls.addClassCleanup(cls.place.cleanup)
        packed = os.path.join(cls.place.name, "packed")
        more = [] if HAS_NVCC else ["--without-kernels"]
        done = run([f"{ROOT}/scripts/gpu_check", "--pack", packed, "--built",
                    BUILD, *more])
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        # As it travels: an archive, unpacked elsewhere.
        archive = shutil.make_archive(packed, "tar", packed)
        cls.archive_bytes = os.path.getsize(archive)
        cls.tree = os.path.join(cls.place.name, "elsewhere")
        shutil.unpack_archive(archive, cls.tree)
        shutil.rmtree(packed)

    def check(self, *more, env=None):
        out = os.path.join(self.place.name, "out")
        done = run([f"{self.tree}/gpu_check", "--out", out, *more], env)
        with open(f"{out}/gpu_report.json", encoding="utf-8") as file:
            report = json.load(file)
        with open(f"{out}/report.md", encoding="utf-8") as file:
            return done, report, file.read()

    def test_is_small_and_holds_no_path(self):
        self.assertLess(self.archive_bytes, MOST_BYTES)
        for name in ("bin/gpt", "bin/gpu_test", "lib/libaliquot.so.1"):
            with open(f"{self.tree}/{name}", "rb") as file:
                self.assertNotIn(ROOT.encode(), file.read(), name)

    def test_passes_over_the_stand_ins(self):
        done, report, table = self.check("--double", DOUBLES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(report["stand_in"])
        self.assertEqual(report["counts"]["FAILED"], 0)
        status = {line["check"]: line["status"] for line in report["lines"]}
        for name in ("stamp", "capture", "NCCL, 2 ranks on one GPU",
                     "gpt f32 on the GPU", "gpt bf16 on the GPU",
                     "gpt bf16, FSDP over 2 ranks on one GPU"):
            self.assertEqual(status[name], "ok", name)
        self.assertEqual(status["bandwidth"], "SKIPPED")
        self.assertEqual(status["torch"], "SKIPPED")
        self.assertGreater(len(status), 100)
        self.assertIn("no GPU was used", table)
        for word in ("GB/s", "gb per s", "tokens per s"):
            self.assertNotIn(word, table)

    def test_fails_when_a_kernel_is_wrong(self):
        done, report, table = self.check(
            "--double", DOUBLES,
            env={"ALIQUOT_DOUBLE_MUTATE": "name=alq_adamw,short_tail:1"})
        self.assertEqual(done.returncode, 1)
        self.assertGreater(report["counts"]["FAILED"], 0)
        self.assertIn("| FAILED |", table)

    @unittest.skipIf(HAS_DRIVER, "there is a driver here")
    def test_without_a_gpu_fails_and_says_why(self):
        done, report, _ = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIn("libcuda.so.1", done.stdout)
        self.assertFalse(report["stand_in"])

    def test_bad_arguments_are_refused(self):
        done = run([f"{ROOT}/scripts/gpu_check", "--pack", self.place.name,
                    "--built", BUILD, "--without-kernels"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("holds other things", done.stderr)
        # A folder that only looks like a packed tree is not replaced.
        lookalike = os.path.join(self.place.name, "lookalike")
        shutil.copytree(f"{ROOT}/scripts", lookalike)
        before = sorted(os.listdir(lookalike))
        done = run([f"{ROOT}/scripts/gpu_check", "--pack", lookalike,
                    "--built", BUILD, "--without-kernels"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("holds other things", done.stderr)
        self.assertEqual(sorted(os.listdir(lookalike)), before)
        done = run([f"{ROOT}/scripts/gpu_check", "--pack",
                    f"{self.tree}/gpu_check", "--built", BUILD,
                    "--without-kernels"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("is no folder", done.stderr)
        done = run([f"{ROOT}/scripts/gpu_check", "--tree", self.tree,
                    "--out", f"{self.tree}/gpu_check", "--double", DOUBLES])
        self.assertEqual(done.returncode, 2)
        self.assertIn("--out", done.stderr)
        done = run([f"{ROOT}/scripts/gpu_check", "--tree", self.tree,
                    "--out", self.place.name, "--double", "/nowhere"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("libcuda.so.1", done.stderr)
        done = run([f"{ROOT}/scripts/gpu_check", "--tree", "/nowhere"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("--pack", done.stderr)
        done = run([f"{ROOT}/scripts/gpu_check", "--tree", self.tree,
                    "--double", DOUBLES])
        self.assertEqual(done.returncode, 2)
        self.assertIn("--out", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

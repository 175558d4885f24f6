"""abidiff of the header's probe library against the committed baseline.

Any difference fails, and the comparison is shown to notice the changes it is
there for.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
GENERATE = os.path.join(ROOT, "abi", "generate")


def compare(root):
    return subprocess.run([sys.executable, GENERATE, "--compare",
                           "--root", root],
                          capture_output=True, text=True, check=False)


class Baseline(unittest.TestCase):
    def test_header_equals_baseline(self):
        run = compare(ROOT)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def notices(self, old, new):
        with tempfile.TemporaryDirectory() as root:
            for part in ("abi", "include"):
                shutil.copytree(os.path.join(ROOT, part),
                                os.path.join(root, part))
            path = os.path.join(root, "include/aliquot/aliquot.h")
            with open(path, encoding="ascii") as file:
                text = file.read()
            self.assertIn(old, text)
            with open(path, "w", encoding="ascii") as file:
                file.write(text.replace(old, new, 1))
            write = subprocess.run(
                [sys.executable, GENERATE, "--root", root],
                capture_output=True, text=True, check=False)
            self.assertEqual(write.returncode, 0, write.stderr)
            run = compare(root)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn("--baseline", run.stderr)
            return run.stdout

    def test_swapped_fields(self):
        self.notices("int32_t bad_rank, bad_microbatch;",
                     "int32_t bad_microbatch, bad_rank;")

    def test_widened_field(self):
        self.notices("int32_t n_groups;\n  uint32_t reserved;",
                     "int64_t n_groups;")

    def test_appended_field(self):
        out = self.notices("int64_t syscalls, sleeps;",
                           "int64_t syscalls, sleeps, more;")
        self.assertIn("more", out)

    def test_changed_argument(self):
        self.notices("ALQ_API int64_t alq_dtype_size(alq_dtype dtype);",
                     "ALQ_API int64_t alq_dtype_size(int64_t dtype);")


if __name__ == "__main__":
    unittest.main()

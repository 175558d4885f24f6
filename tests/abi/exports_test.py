"""What the shared library shows to the loader, and what it asks of it.

Usage: exports_test.py LIBRARY
"""

import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
LIBRARY = sys.argv[1]
ALLOWED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1",
           "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True,
                          check=True).stdout


class Exports(unittest.TestCase):
    def test_symbols_are_the_golden_list(self):
        with open(os.path.join(ROOT, "abi", "aliquot.symbols"),
                  encoding="ascii") as file:
            golden = file.read().split()
        lines = output("nm", "-D", "--defined-only", LIBRARY).splitlines()
        shown = [line.split()[2] for line in lines]
        # The version node itself is an absolute symbol.
        shown = [name for name in shown if not name.startswith("ALQ_1.")]
        bare = sorted(name.split("@@")[0] for name in shown)
        self.assertEqual(bare, golden)
        for name in shown:
            self.assertTrue(name.endswith("@@ALQ_1.0"), name)

    def test_needs_only_the_base_libraries(self):
        dynamic = output("readelf", "-dW", LIBRARY)
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic))
        self.assertTrue(needed)
        self.assertEqual(needed - ALLOWED, set())

    def test_soname_and_flags(self):
        dynamic = output("readelf", "-dW", LIBRARY)
        self.assertIn("(SONAME)             Library soname: "
                      "[libaliquot.so.1]", dynamic)
        flags = " ".join(re.findall(r"\(FLAGS(?:_1)?\)(.*)", dynamic))
        self.assertIn("NOW", flags)
        self.assertIn("NODELETE", flags)
        self.assertNotRegex(dynamic, r"\((RPATH|RUNPATH|TEXTREL)\)")

    def test_stack_is_not_executable(self):
        headers = output("readelf", "-lW", LIBRARY)
        stack = re.search(r"GNU_STACK.*", headers).group(0)
        self.assertNotIn("RWE", stack)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])

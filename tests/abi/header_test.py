"""The header alone compiles without a diagnostic in every dialect.

Usage: header_test.py C_COMPILER CXX_COMPILER
"""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
C, CXX = sys.argv[1:3]
COMMON = ["-Wall", "-Wextra", "-Wpadded", "-Wconversion", "-pedantic",
          "-Werror", "-fsyntax-only"]


def compile_text(command, suffix, text):
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "alone" + suffix)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return subprocess.run(
            [*command, f"-I{ROOT}/include", f"-I{ROOT}", path],
            capture_output=True, text=True, check=False)


class HeaderAlone(unittest.TestCase):
    def compiles(self, command, suffix, header):
        run = compile_text(command, suffix, f'#include "{header}"\n')
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def c(self, standard, header="aliquot/aliquot.h"):
        self.compiles([C, f"-std={standard}", *COMMON, "-Wstrict-prototypes"],
                      ".c", header)

    def test_c99(self):
        self.c("c99")

    def test_c11(self):
        self.c("c11")

    def test_c17(self):
        self.c("c17")

    def test_cxx20(self):
        self.compiles([CXX, "-std=c++20", *COMMON], ".cc", "aliquot/aliquot.h")

    def test_cxx_face(self):
        flags = [f for f in COMMON if f != "-Wpadded"]
        self.compiles([CXX, "-std=c++20", *flags, "-Wshadow"], ".cc",
                      "aliquot/aliquot.hpp")

    def test_table_as_c99(self):
        self.c("c99", "abi/aliquot_api.h")

    def test_frozen_layout_as_c(self):
        self.c("c11", "abi/layout_asserts.h")

    def test_frozen_layout_as_cxx(self):
        self.compiles([CXX, "-std=c++20", *COMMON], ".cc",
                      "abi/layout_asserts.h")

    def test_a_changed_field_is_noticed(self):
        path = os.path.join(ROOT, "include/aliquot/aliquot.h")
        with open(path, encoding="ascii") as file:
            text = file.read()
        # Two fields of one size, swapped: sizes stay, offsets change.
        swapped = text.replace("int64_t step;      ", "int64_t bad_param;")
        swapped = swapped.replace("int64_t bad_param; /* first",
                                  "int64_t step; /* first")
        self.assertNotEqual(text, swapped)
        with open(os.path.join(ROOT, "abi/layout_asserts.h"),
                  encoding="ascii") as file:
            asserts = file.read().replace('#include "aliquot/aliquot.h"', "")
        run = compile_text([C, "-std=c11", "-fsyntax-only"], ".c",
                           swapped + asserts)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("alq_step_report", run.stderr)

    def test_includes_only_two_headers(self):
        path = os.path.join(ROOT, "include/aliquot/aliquot.h")
        with open(path, encoding="ascii") as file:
            includes = [line.strip() for line in file
                        if line.startswith("#include")]
        self.assertEqual(includes,
                         ["#include <stddef.h>", "#include <stdint.h>"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

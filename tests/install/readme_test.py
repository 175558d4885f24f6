"""The examples of the README that need no package, as they stand there, alone
and over ranks; tests/python/docs_test.py has those that do.

Usage: readme_test.py BUILD_DIR C_COMPILER
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD, C = sys.argv[1:3]
COMMAND = os.path.join(BUILD, "bin", "aliquot")
RANKS = 3

with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
    README = file.read()


def block(language, holds=""):
    found = [text for text in re.findall(rf"^```{language}\n(.*?)^```", README,
                                         re.S | re.M) if holds in text]
    assert len(found) == 1, f"one {language} block expected: {len(found)}"
    return found[0]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT,
                          stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


class Readme(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.scratch)

    def program_in_c(self):
        source = os.path.join(self.scratch, "example.c")
        with open(source, "w", encoding="ascii") as out:
            out.write(block("c"))
        program = os.path.join(self.scratch, "example")
        run(C, "-std=c99", "-Wall", "-Wextra", "-Werror", "-Iinclude", source,
            f"-L{BUILD}/lib", "-laliquot", f"-Wl,-rpath,{BUILD}/lib",
            "-o", program)
        return program

    def script_in_python(self):
        # The README's path is that of the release build.
        text = block("python", "ctypes").replace("build/release", BUILD)
        path = os.path.join(self.scratch, "example.py")
        with open(path, "w", encoding="ascii") as out:
            out.write(text)
        return path

    def ranks(self, *command):
        """What each rank of a world said, sorted, without its prefix."""
        out = run(COMMAND, "run", "-n", str(RANKS), "--", *command)
        return sorted(line[line.index("rank "):]
                      for line in out.splitlines() if "rank " in line)

    def test_c_alone(self):
        self.assertEqual(run(self.program_in_c()), "rank 0 of 1: 1 10\n")

    def test_c_over_ranks(self):
        self.assertEqual(self.ranks(self.program_in_c()),
                         [f"rank {r} of 3: 6 30" for r in range(RANKS)])

    def test_python_alone(self):
        out = run(sys.executable, "-B", self.script_in_python())
        self.assertEqual(out, "rank 0: [1.0, 2.0, 0.0]\n")

    def test_python_over_ranks(self):
        out = self.ranks(sys.executable, "-B", self.script_in_python())
        self.assertEqual(out, [f"rank {r}: [3.0, 6.0, 3.0]"
                               for r in range(RANKS)])

    def test_lengths(self):
        """As long as promised: nobody reads a long example."""
        self.assertLessEqual(
            len([x for x in block("python", "ctypes").splitlines() if x]), 16)
        self.assertLessEqual(
            len([x for x in block("c").splitlines() if x]), 24)

    def test_links_lead_somewhere(self):
        for name in ("README.md", "CONTRIBUTING.md", "docs/design.md",
                     "docs/testing.md", "docs/backend.md", "docs/glossary.md",
                     "docs/python.md", "docs/migration.md"):
            with open(os.path.join(ROOT, name), encoding="utf-8") as doc:
                text = doc.read()
            for target in re.findall(r"\]\(([^)#:]+)\)", text):
                path = os.path.join(ROOT, os.path.dirname(name), target)
                self.assertTrue(os.path.exists(path), f"{name}: {target}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

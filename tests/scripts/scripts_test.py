"""The checks of the scripts notice what they are there for."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
sys.dont_write_bytecode = True

import check_sources  # noqa: E402
import run_tests  # noqa: E402


class Layers(unittest.TestCase):
    def refused(self, path, target):
        self.assertIsNotNone(check_sources.check_include(path, target),
                             f"{path} may not include {target}")

    def allowed(self, path, target):
        self.assertIsNone(check_sources.check_include(path, target))

    def test_downwards_only(self):
        self.allowed("src/engine/core.cc", "engine/core.h")
        self.allowed("src/engine/executor.h", "comm/group.h")
        self.allowed("src/mesh/mesh.cc", "base/status.h")
        self.allowed("src/device/device.h", "kernels/ops.h")
        self.refused("src/base/log.cc", "device/device.h")
        self.refused("src/comm/mem/world.cc", "mesh/mesh.h")
        self.refused("src/engine/plan.cc", "api/handle.h")
        self.refused("kernels/cpu/cast.cc", "device/device.h")
        self.refused("src/base/dtype.h", "kernels/ops.h")

    def test_neighbours(self):
        self.refused("src/engine/plan.cc", "pipe/action.h")
        self.refused("src/tensor/linear.cc", "engine/core.h")

    def test_backends(self):
        self.allowed("src/comm/mem/join.cc", "comm/mem/layout.h")
        self.allowed("src/comm/mem/join.cc", "comm/bootstrap/bootstrap.h")
        self.allowed("src/comm/mem/join.cc", "comm/group.h")
        self.refused("src/comm/ucx/group.cc", "comm/mem/layout.h")
        self.refused("src/comm/bootstrap/store.cc", "comm/mem/layout.h")

    def test_public_and_generated(self):
        self.allowed("src/base/status.h", "aliquot/aliquot.h")
        self.allowed("src/api/open.cc", "abi/layout_asserts.h")
        self.refused("src/base/status.cc", "abi/layout_asserts.h")
        self.allowed("examples/gpt/engine.cc", "aliquot/aliquot.h")
        self.allowed("examples/gpt/engine.cc", "engine.h")
        self.refused("examples/gpt/engine.cc", "base/status.h")

    def test_unknown_folder(self):
        self.refused("src/mesh/mesh.cc", "elsewhere/file.h")


class Files(unittest.TestCase):
    def test_length(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(
                list(check_sources.check_length("src/a.cc", "\n" * 400)), [])
            self.assertEqual(said.getvalue(), "")
            self.assertEqual(
                list(check_sources.check_length("src/a.cc", "\n" * 401)), [])
            self.assertIn("warning", said.getvalue())
        self.assertEqual(
            len(list(check_sources.check_length("src/a.cc", "\n" * 801))), 1)
        self.assertEqual(list(check_sources.check_length(
            "include/aliquot/aliquot.h", "\n" * 2000)), [])

    def test_paths(self):
        for path in ("/ho" + "me/someone/x", "-I/wo" + "rk/x"):
            self.assertEqual(len(list(check_sources.check_paths(path))), 1)
        for text in ("build/wo" + "rk/x", "/usr/share/x", "a/ho" + "me/b"):
            self.assertEqual(list(check_sources.check_paths(text)), [])

    def test_syntax(self):
        self.assertTrue(list(check_sources.check_syntax("a.py", "def f(:\n")))
        self.assertFalse(list(check_sources.check_syntax("a.py", "x = 1\n")))
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write("#!/bin/bash\nif true; then\n")
            file.flush()
            with open(file.name, encoding="ascii") as written:
                found = list(check_sources.check_syntax(file.name,
                                                        written.read()))
        self.assertEqual(len(found), 1)


class Counting(unittest.TestCase):
    def test_cases(self):
        self.assertEqual(run_tests.cases_of("Running 12 test cases...\n"), 12)
        self.assertEqual(run_tests.cases_of("Running 1 test case...\n"), 1)
        self.assertEqual(run_tests.cases_of("...\nRan 5 tests in 0.1s\n"), 5)
        self.assertEqual(run_tests.cases_of("166 checks, 0 failures\n"), 166)
        self.assertEqual(run_tests.cases_of("done\n"), 1)

    def project(self, tests):
        """A project whose tests are shell commands; returns its build."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        lines = ["cmake_minimum_required(VERSION 3.25)", "project(p NONE)",
                 "enable_testing()"]
        for name, labels, command in tests:
            lines += [f'add_test(NAME {name} COMMAND sh -c "{command}")',
                      f"set_tests_properties({name} PROPERTIES "
                      f'LABELS "{labels}")']
        with open(os.path.join(scratch.name, "CMakeLists.txt"), "w",
                  encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        build = os.path.join(scratch.name, "build")
        subprocess.run(["cmake", "-G", "Ninja", "-S", scratch.name, "-B", build],
                       check=True, capture_output=True)
        return build

    def run_script(self, build, *options):
        done = subprocess.run(
            [sys.executable, "-B",
             os.path.join(ROOT, "scripts", "run_tests.py"), build, *options],
            capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    def test_suites_are_counted(self):
        build = self.project([
            ("a", "unit", "echo Running 3 test cases..."),
            ("b", "multi", "true"),
            ("c", "multi;long", "exit 1")])
        status, lines = self.run_script(build)
        self.assertEqual((status, lines[-1]), (0, "4 passed, 0 failed"))
        status, lines = self.run_script(build, "--full")
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed"))
        status, lines = self.run_script(build, "unit")
        self.assertEqual((status, lines[-1]), (0, "3 passed, 0 failed"))

    def test_a_skipped_test_is_named(self):
        build = self.project([("a", "unit", "true"), ("b", "unit", "exit 77")])
        with open(os.path.join(os.path.dirname(build), "CMakeLists.txt"), "a",
                  encoding="ascii") as file:
            file.write("set_tests_properties(b PROPERTIES "
                       "SKIP_RETURN_CODE 77)\n")
        subprocess.run(["cmake", build], check=True, capture_output=True)
        status, lines = self.run_script(build)
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed"))
        self.assertRegex(lines[-2], r"^skipped.*: b \(")

    def test_a_missing_program_fails(self):
        build = self.project([("a", "unit", "true")])
        with open(os.path.join(os.path.dirname(build), "CMakeLists.txt"), "a",
                  encoding="ascii") as file:
            file.write("add_test(NAME gone COMMAND /no/such/program)\n"
                       "set_tests_properties(gone PROPERTIES LABELS unit)\n")
        subprocess.run(["cmake", build], check=True, capture_output=True)
        status, lines = self.run_script(build)
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_a_late_suite_fails(self):
        build = self.project([("slow", "unit", "sleep 1")])
        done = subprocess.run(
            [sys.executable, "-B",
             os.path.join(ROOT, "scripts", "run_tests.py"), build],
            capture_output=True, text=True, check=False,
            env=dict(os.environ, ALIQUOT_TEST_BUDGET="0.001"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("OVER BUDGET", done.stdout)
        self.assertTrue(done.stdout.endswith("1 passed, 1 failed\n"))

    def test_unknown_suite(self):
        build = self.project([("a", "unit", "true")])
        self.assertEqual(self.run_script(build, "nothing")[0], 2)


if __name__ == "__main__":
    unittest.main()

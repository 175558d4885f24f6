"""Consumers in C and C++ against an installation, which is then moved.

Usage: install_test.py BUILD_DIR C_COMPILER CXX_COMPILER VERSION
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CONSUMER = os.path.join(HERE, "consumer")
BUILD, C, CXX, VERSION = sys.argv[1:5]


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True,
                          check=False, timeout=200, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n"
                             f"{done.stdout}\n{done.stderr}")
    return done.stdout


class Installation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        first = os.path.join(cls.scratch, "first")
        run("cmake", "--install", BUILD, "--prefix", first)
        # Relocatable: everything below is done from another place.
        cls.prefix = os.path.join(cls.scratch, "moved")
        os.rename(first, cls.prefix)
        cls.lib = os.path.join(cls.prefix, cls.libdir())

    @classmethod
    def libdir(cls):
        for folder, _, files in os.walk(cls.prefix):
            if "libaliquot.so.1" in files:
                return os.path.relpath(folder, cls.prefix)
        raise AssertionError("libaliquot.so.1 was not installed")

    def says_version(self, program):
        major, minor, patch = map(int, VERSION.split("."))
        number = major * 1000000 + minor * 1000 + patch
        env = dict(os.environ, LD_LIBRARY_PATH=self.lib)
        self.assertEqual(run(program, env=env), f"version {number}\n")

    def test_files(self):
        for name in ("include/aliquot/aliquot.h", "include/aliquot/aliquot.hpp",
                     "include/aliquot/aliquot_api.h",
                     "include/aliquot/hpp/engine.hpp"):
            self.assertTrue(os.path.isfile(os.path.join(self.prefix, name)))
        real = os.path.realpath(os.path.join(self.lib, "libaliquot.so"))
        for link in ("libaliquot.so", "libaliquot.so.1"):
            path = os.path.join(self.lib, link)
            self.assertTrue(os.path.islink(path))
            self.assertEqual(os.path.realpath(path), real)

    def test_no_build_path_is_left(self):
        for folder, _, files in os.walk(self.prefix):
            for name in files:
                if not name.endswith((".cmake", ".pc", ".h", ".hpp")):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    text = f.read()
                for path in (BUILD, self.scratch):
                    self.assertNotIn(path, text, name)

    def test_command(self):
        command = os.path.join(self.prefix, "bin", "aliquot")
        self.assertIn(VERSION, run(command, "version"))

    def test_cmake_package(self):
        build = os.path.join(self.scratch, "consumer")
        run("cmake", "-S", CONSUMER, "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_C_COMPILER={C}", f"-DCMAKE_CXX_COMPILER={CXX}")
        run("cmake", "--build", build)
        self.says_version(os.path.join(build, "consumer_c"))
        self.says_version(os.path.join(build, "consumer_cxx"))

    def test_cmake_package_refuses_another_major(self):
        build = os.path.join(self.scratch, "other_major")
        source = os.path.join(self.scratch, "other_major_source")
        os.makedirs(source)
        with open(os.path.join(source, "CMakeLists.txt"), "w",
                  encoding="ascii") as file:
            file.write("cmake_minimum_required(VERSION 3.25)\n"
                       "project(other NONE)\n"
                       "find_package(aliquot 99 REQUIRED CONFIG)\n")
        with self.assertRaisesRegex(AssertionError, "99"):
            run("cmake", "-S", source, "-B", build, "-G", "Ninja",
                f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def pkg_config(self, *options):
        env = dict(os.environ,
                   PKG_CONFIG_PATH=os.path.join(self.lib, "pkgconfig"))
        return run("pkg-config", *options, "aliquot", env=env).split()

    def test_pkg_config_c(self):
        out = os.path.join(self.scratch, "pc_c")
        run(C, "-std=c99", os.path.join(CONSUMER, "main.c"), "-o", out,
            *self.pkg_config("--cflags", "--libs"))
        self.says_version(out)

    def test_pkg_config_cxx(self):
        out = os.path.join(self.scratch, "pc_cxx")
        run(CXX, "-std=c++20", os.path.join(CONSUMER, "main.cc"), "-o", out,
            *self.pkg_config("--cflags", "--libs"))
        self.says_version(out)
        self.assertEqual(self.pkg_config("--modversion"), [VERSION])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])

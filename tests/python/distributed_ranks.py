"""Ranks of torch.distributed for tests: processes of the calling script.

Starting torch takes seconds, so the ranks of a script run all of its checks, in
the order they are written, and tell how each went:

    def check_sum(world): ...        # on every rank
    if __name__ == "__main__":
        distributed_ranks.main(globals(), sizes=(2, 4))

A check has world.rank, world.size and world.group (None: the default).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))
sys.dont_write_bytecode = True

TIMEOUT_S = 60
LIMIT_S = 240
_MARK = "##check "


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Forked:
    """A fork of this process that runs function(); as much of Popen as the
    tests need.  It has PyTorch already, which takes seconds to import."""

    def __init__(self, function, variables):
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, variables, write)
        os.close(write)
        self.stdout = open(read, errors="replace")
        self.returncode = None

    @staticmethod
    def _run(function, variables, write):
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor in (1, 2):
                os.dup2(write, descriptor)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
            os.environ.update(variables)
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=LIMIT_S):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.005)
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Ranks:
    """size processes that run function `name` of the script's scope; ended with
    the block.  fresh: they start as Python programs, not as forks."""

    def __init__(self, size, name, fresh=False, **variables):
        place = dict(WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=str(free_port()), OMP_NUM_THREADS="1",
                     LOCAL_WORLD_SIZE=str(size), **variables)
        start = self._start if fresh else self._fork
        self.ranks = [start(name, {**place, "RANK": str(rank),
                                   "LOCAL_RANK": str(rank)})
                      for rank in range(size)]
        self.texts = [[] for _ in self.ranks]
        self.threads = [threading.Thread(target=self._read, args=(i,),
                                         daemon=True)
                        for i in range(size)]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _start(name, variables):
        return subprocess.Popen(
            [sys.executable, "-B", os.path.abspath(sys.argv[0]), "--rank",
             name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **variables})

    @staticmethod
    def _fork(name, variables):
        scope = sys.modules["__main__"].__dict__
        return Forked(lambda: _run_rank(scope, name), variables)

    def _read(self, rank):
        for line in self.ranks[rank].stdout:
            self.texts[rank].append(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
        for thread, process in zip(self.threads, self.ranks):
            thread.join(5)
            process.stdout.close()

    def until(self, rank, text, timeout=TIMEOUT_S):
        """Until a rank has printed a line with the text."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if any(text in line for line in self.texts[rank]):
                return
            if self.ranks[rank].poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError("rank %d did not print %r but: %s" % (
            rank, text, "".join(self.texts[rank])))

    def outcomes(self, timeout=LIMIT_S):
        """[(exit status, output)] of all ranks."""
        deadline = time.monotonic() + timeout
        for process in self.ranks:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise AssertionError("ranks hang:\n" + "\n".join(
                    "".join(text) for text in self.texts)) from None
        for thread in self.threads:
            thread.join(5)
        return [(process.returncode, "".join(text))
                for process, text in zip(self.ranks, self.texts)]


def begin(backend="aliquot", timeout=TIMEOUT_S, **options):
    """Joins the world; what a check is given."""
    from datetime import timedelta
    import torch
    import torch.distributed as dist
    import aliquot.torch  # noqa: F401  (registers the backend)
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout),
                            **options)
    return types.SimpleNamespace(rank=dist.get_rank(), group=None,
                                 size=dist.get_world_size())


def end_for_another():
    """Ends the world of a program that is going to begin another.  That meets at
    a port of its own: at the old one a quick rank may still find the store of
    the world that ends, and rank 0 then waits for it in vain."""
    import torch
    import torch.distributed as dist
    port = torch.tensor([free_port()])
    dist.broadcast(port, 0)
    os.environ["MASTER_PORT"] = str(port.item())
    dist.destroy_process_group()


def _run_checks(scope):
    import torch.distributed as dist
    world = begin()
    for name in [n for n in scope if n.startswith("check_")]:
        failure = None
        try:
            scope[name](world)
            dist.barrier()
        except BaseException:
            failure = traceback.format_exc()
        print(_MARK + json.dumps([name, failure]), flush=True)
        if failure is not None:
            os._exit(1)  # the peers must not wait for this rank
    dist.destroy_process_group()


def _tests_of_checks(scope, sizes):
    def make(size):
        def test(self):
            with Ranks(size, "_checks") as ranks:
                outcomes = ranks.outcomes()
            seen = 0
            for rank, (status, text) in enumerate(outcomes):
                for line in text.splitlines():
                    if line.startswith(_MARK):
                        name, failure = json.loads(line[len(_MARK):])
                        seen += 1
                        with self.subTest(check=name, rank=rank):
                            self.assertIsNone(failure, failure)
                self.assertEqual(status, 0, text)
            checks = sum(n.startswith("check_") for n in scope)
            self.assertEqual(seen, checks * size)

        return test

    return type("Checks", (unittest.TestCase,), {
        "test_%d_ranks" % size: make(size) for size in sizes})


def _run_rank(scope, name):
    if name == "_checks":
        _run_checks(scope)
    else:
        scope[name]()


def main(scope, sizes=()):
    """Runs a rank, or the tests of the calling script."""
    # A script that was run by runpy is not __main__ yet.
    sys.modules["__main__"].__dict__.update(scope)
    if sys.argv[1:2] == ["--rank"]:
        _run_rank(scope, sys.argv[2])
        return
    if sizes:
        scope["Checks"] = _tests_of_checks(scope, sizes)
    module = types.ModuleType("tests")
    module.__dict__.update(scope)
    unittest.main(module=module)


class Passing(unittest.TestCase):
    """A test whose ranks all have to say that they passed."""

    def passes(self, name, size=2, without=(), **variables):
        with Ranks(size, name, **variables) as ranks:
            for rank, (status, text) in enumerate(ranks.outcomes(120)):
                if rank in without:
                    continue
                self.assertEqual(status, 0, text)
                self.assertIn("passed", text)


def say(*what):
    print(*what, flush=True)


def scratch():
    return tempfile.TemporaryDirectory(prefix="aliquot-test-")

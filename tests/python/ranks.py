"""Ranks for the tests of the Python package: as threads and as processes.

A process runs a function of the test script by name: `script --rank NAME`.
"""

import itertools
import os
import secrets
import socket
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))
sys.dont_write_bytecode = True

import aliquot  # noqa: E402

TIMEOUT_S = 60
_names = itertools.count()


def run_threads(size, body, **place):
    """body(context) on every rank; the results in rank order."""
    name = "python-%d-%d" % (os.getpid(), next(_names))
    results, failures = [None] * size, []

    def main(rank):
        try:
            with aliquot.open("local", rank=rank, world_size=size,
                              world_name=name, timeout=TIMEOUT_S,
                              **place) as context:
                results[rank] = body(context)
        except BaseException as error:  # told to the caller, below
            failures.append((rank, error))

    threads = [threading.Thread(target=main, args=(rank,), daemon=True)
               for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError("ranks hang")
    for thread in threads:
        _wait_for_end(thread)
    if failures:
        rank, error = failures[0]
        raise AssertionError(f"rank {rank}: {error!r}") from error
    return results


def _wait_for_end(thread):
    """join() returns before a framework's thread-local destructors have run;
    one that runs while the interpreter ends aborts the process."""
    deadline = time.monotonic() + TIMEOUT_S
    while (os.path.exists("/proc/self/task/%d" % thread.native_id) and
           time.monotonic() < deadline):
        time.sleep(0.001)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes:
    """size processes of this script that run NAME; ended with the block."""

    def __init__(self, size, name, **variables):
        place = dict(ALIQUOT_WORLD_SIZE=str(size),
                     ALIQUOT_STORE="127.0.0.1:%d" % free_port(),
                     ALIQUOT_SECRET=secrets.token_hex(16), OMP_NUM_THREADS="1")
        self.ranks = [subprocess.Popen(
            [sys.executable, "-B", os.path.abspath(sys.argv[0]), "--rank",
             name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **place, **variables, "ALIQUOT_RANK": str(rank)})
            for rank in range(size)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def line(self, rank):
        """The next line that a rank prints."""
        return self.ranks[rank].stdout.readline().strip()

    def outcomes(self, timeout=TIMEOUT_S):
        """[(exit status, output)] of all ranks."""
        deadline = time.monotonic() + timeout
        done = []
        for process in self.ranks:
            text, _ = process.communicate(
                timeout=max(deadline - time.monotonic(), 0.1))
            done.append((process.returncode, text))
        return done


def run_python(*arguments, **variables):
    path = os.path.join(ROOT, "bindings", "python")
    return subprocess.run(
        [sys.executable, "-B", *arguments], timeout=60, text=True,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True, check=False)


def run_code(code, **variables):
    return run_python("-c", code, **variables)


def main(scope):
    """Runs a rank of Processes, or the tests of the calling script."""
    import unittest
    if sys.argv[1:2] == ["--rank"]:
        scope[sys.argv[2]]()
    else:
        unittest.main(module=scope["__name__"])

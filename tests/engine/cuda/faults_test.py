"""Calls of the driver fail at any time of an engine's life, over the stand-ins.

From opening to closing, on two ranks, one call fails: the rank that made it is
told which, its peer that the other one failed or left, both in time; and when
both have let go of everything nothing of the driver's is left.
Usage: faults_test.py LIBRARY OPS DOUBLES IMAGE [unittest options]
"""

import ctypes
import itertools
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import suite  # noqa: E402
from cells import FSDP, Cell  # noqa: E402
from suite import host, scripted  # noqa: E402
from host import _ffi  # noqa: E402

RANKS = 2
TIMEOUT_S = 5  # of a group; what goes on longer does not end by itself
LONGEST_S = 60  # of a life with a failure, on a busy machine
UNKNOWN, LAUNCH_FAILED = 999, 719
CELL = Cell("FSDP", FSDP, RANKS, microbatches=2, steps=2, reports=(1,),
            evaluates=True)
# Which of an entry's calls fail: some in opening, making groups, and steps.
FIRST = (2, 13, 21, 34, 89, 144, 377)
MADE = threading.local()


class Engine(host.Engine):
    """Notes who was made, so that it can be released after a failure."""

    def __init__(self, world, **desc):
        super().__init__(world, **desc)
        MADE.engines.append(self)


def life(library, rank, name, place, ops, doubles):
    """All of a rank: what was refused, or None."""
    MADE.engines = []
    c, world = library.c, None
    try:
        world = host.World.__new__(host.World)
        world.ctx = world.mesh = world.stream = None
        world.__init__(library, bootstrap=_ffi.ALQ_BOOTSTRAP_LOCAL, rank=rank,
                       world_size=RANKS, world_name=name,
                       timeout_ns=TIMEOUT_S * 10**9, **place)
        scripted.run(world, CELL, ops, doubles)
        world.close()
        return None
    except host.Refused as refused:
        return refused
    finally:
        for engine in MADE.engines:
            c.alq_engine_release(engine.handle)
        if world.stream is not None and world.stream.handle:
            c.alq_stream_release(world.ctx, world.on())
        if world.mesh is not None:
            c.alq_mesh_release(world.mesh)
        if world.ctx is not None:
            c.alq_release(world.ctx)


class Faults(unittest.TestCase):
    def lives(self):
        """What each rank was refused."""
        name = b"faults-%d-%d" % (os.getpid(), next(NAMES))
        found = ["does not end"] * RANKS

        def rank_main(rank):
            try:
                found[rank] = life(PART.library, rank, name,
                                   PART.place("cuda", rank), PART.ops,
                                   PART.doubles)
            except BaseException as error:  # pylint: disable=broad-except
                found[rank] = error

        threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True)
                   for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * LONGEST_S)
        return found

    def held(self):
        return (PART.doubles.cuda.double_live_handles(),
                PART.doubles.cuda.double_live_bytes(),
                PART.doubles.nccl.double_nccl_alive())

    def check_given_back(self, before):
        for _ in range(2000):
            if self.held() == before:
                return
            time.sleep(0.005)
        self.assertEqual(self.held(), before)

    def fail_some(self, entry, result, sticky):
        """Until no call is left that could fail; how many failed."""
        cuda, failed = PART.doubles.cuda, 0
        for n in FIRST:
            before = self.held()
            cuda.double_fail_at(entry.encode(), ctypes.c_int64(n), result,
                                sticky)
            start = time.monotonic()
            found = self.lives()
            took = time.monotonic() - start
            left = cuda.double_unfail()
            with self.subTest(entry=entry, call=n, took=took,
                              found=[str(f) for f in found]):
                self.assertLess(took, LONGEST_S)
                for one in found:
                    self.assertTrue(one is None or
                                    isinstance(one, host.Refused))
                if left == 0 and entry not in WITHOUT:
                    texts = [str(f) for f in found if f is not None]
                    self.assertTrue(
                        any(("kernel" if entry == "kernel" else entry) in t
                            for t in texts) or
                        (sticky and any("LAUNCH_FAILED" in t for t in texts)))
                self.check_given_back(before)
            if left:
                return failed
            failed += 1
        return failed

    def test_every_call(self):
        for entry in ENTRIES:
            self.assertGreater(self.fail_some(entry, UNKNOWN, 0), 0, entry)

    def test_broken_context(self):
        for entry in ("cuLaunchKernel", "cuEventRecord", "kernel"):
            self.assertGreater(self.fail_some(entry, LAUNCH_FAILED, 1), 0,
                               entry)


ENTRIES = ("cuStreamCreate", "cuStreamGetId", "cuStreamGetCaptureInfo",
           "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord",
           "cuEventQuery", "cuMemAlloc", "cuMemHostAlloc", "cuMemsetD8Async",
           "cuMemcpyAsync", "cuModuleLoadData", "cuModuleGetFunction",
           "cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent")
# Those that tidy up or poll, and those that there is another way for.
WITHOUT = ("cuEventQuery", "cuCtxGetCurrent", "cuCtxPushCurrent")
NAMES = itertools.count()

if __name__ == "__main__":
    PART = suite.Suite(*sys.argv[1:5])
    for found in (PART.doubles.cuda.double_live_handles,
                  PART.doubles.cuda.double_live_bytes,
                  PART.doubles.cuda.double_unfail,
                  PART.doubles.nccl.double_nccl_alive):
        found.restype = ctypes.c_int64
    PART.doubles.cuda.double_free_waits(1)
    scripted.host.Engine = Engine
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])

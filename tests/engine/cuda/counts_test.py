"""Launches, event records and waits, and NCCL calls of a step, by formula.

For every preset, over the stand-ins (double: no GPU was used): what a step of the
steady state puts on streams is what docs/gpu/counts.md says, whatever the number
of parameters in a unit; and its calls allocate nothing and never wait on the host.
Usage: counts_test.py LIBRARY OPS DOUBLES IMAGE [unittest options]
"""

import ctypes
import os
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import suite  # noqa: E402
from cells import ADAMW, HSDP, Cell  # noqa: E402
from suite import host, scripted  # noqa: E402
from host import _ffi  # noqa: E402

F, B = _ffi.ALQ_PASS_F, _ffi.ALQ_PASS_B
ELEMENTS = 128  # of a parameter; no gaps in between
WARM = 3  # steps before the one that counts
PRESETS = {
    "single": (_ffi.ALQ_STRATEGY_SINGLE, 1, ""),
    "ddp": (_ffi.ALQ_STRATEGY_DDP, 2, ""),
    "zero1": (_ffi.ALQ_STRATEGY_ZERO1, 2, ""),
    "zero2": (_ffi.ALQ_STRATEGY_ZERO2, 2, ""),
    "fsdp": (_ffi.ALQ_STRATEGY_FSDP, 2, ""),
    "hsdp": (_ffi.ALQ_STRATEGY_HSDP, 4, HSDP),
}
COUNTED = ("launch", "record", "wait")
NEVER = ("memcpy", "memset", "alloc", "host_alloc", "free", "host_sync", "sync",
         "stream", "event")


def formula(preset, units, microbatches):
    """As docs/gpu/counts.md."""
    u, m = units, microbatches
    sharded = preset in ("fsdp", "hsdp")
    single = preset == "single"
    later = m - 1
    if sharded:  # two slots for the units but the root
        gathers = 2 * u - 3 + later * 2 * (u - 3)
    else:
        gathers = u if preset in ("zero1", "zero2") else 0
    each = sharded or preset == "zero2"
    reductions = 0 if single else u * (m if each else 1)
    replicas = u if preset == "hsdp" else 0
    launches = 2 + gathers + reductions + replicas  # of NCCL
    turns = 0  # from the reduction's stream to the gather's or back
    if gathers:
        turns = 2
    if sharded:
        turns += 2 * (u - 3) + later * (2 + 2 * (u - 3))
    chained = 2 + (0 if single else 1) + turns
    sums = 0 if m == 1 else u * (later if each else m)
    return {
        "launch": 4 * u * m + 3 * u * m + sums + 2 * gathers + 2 * u + 5,
        "record": (6 * u + 1) * m + 5 + launches +
                  (1 + 2 * gathers if gathers else 0),
        "wait": 5 * u * m + 3 + chained +
                (1 + 2 * gathers + 2 * u * m if gathers else 0),
        "nccl launch": launches, "nccl call": launches}


class Model:
    """Units of many equal parameters."""

    def __init__(self, world, cell, units, params):
        self.engine = engine = host.Engine(world, poison=0)
        self.world, self.cell, self.units = world, cell, []
        for u in range(units):
            ids = [engine.add_param(f"p{u}.{i}", [ELEMENTS], True,
                                    _ffi.ALQ_F32) for i in range(params)]
            engine.add_unit(f"u{u}", ids, root=u == 0)
            self.units.append(ids)
        engine.plan_and_commit(optimizer=ADAMW, **cell.plan)

    def step(self):
        engine, m = self.engine, self.cell.microbatches
        for i in range(m):
            engine.microbatch(_ffi.ALQ_TRAIN, 1.0, i + 1 == m)
            for u in range(len(self.units)):
                engine.begin(u, F, sync=False)
                engine.end(u, F)
            for u in reversed(range(len(self.units))):
                engine.begin(u, B, sync=False)
                for p in self.units[u]:
                    engine.ready(p)
                engine.end(u, B)
            engine.microbatch_end()
        engine.step(0.01, wants_report=False)


def measure(part, name, units, microbatches, params):
    """What one step of all ranks comes to."""
    strategy, ranks, mesh = PRESETS[name]
    cell = Cell(name, strategy, ranks, microbatches=microbatches, mesh=mesh)
    barrier = threading.Barrier(ranks, timeout=host.TIMEOUT_S)
    doubles, found = part.doubles, {}

    def body(world):
        model = Model(world, cell, units, params)
        for _ in range(WARM):
            model.step()
        world.sync()
        if barrier.wait() == 0:
            doubles.cuda.double_reset_counts()
            doubles.nccl.double_nccl_reset_counts()
            doubles.cuda.double_step(1)
        barrier.wait()
        model.step()
        if barrier.wait() == 0:
            doubles.cuda.double_step(0)
            for what in (*COUNTED, *NEVER):
                found[what] = doubles.count(what)
            for what in ("call", "launch"):
                found["nccl " + what] = doubles.nccl.double_nccl_count(
                    what.encode())
        barrier.wait()
        world.sync()
        model.engine.close()

    part.run(cell, "cuda", body=body)
    return found


class Counts(unittest.TestCase):
    def check(self, preset, units, microbatches, params):
        with self.subTest(preset=preset, units=units,
                          microbatches=microbatches, params=params):
            found = measure(PART, preset, units, microbatches, params)
            ranks = PRESETS[preset][1]
            expected = {what: ranks * n for what, n in
                        formula(preset, units, microbatches).items()}
            expected.update((what, 0) for what in NEVER)
            self.assertEqual(found, expected)
            self.assertEqual(PART.violations(), 0)

    def test_formula(self):
        for preset in PRESETS:
            for microbatches in (1, 3):
                self.check(preset, 5, microbatches, 2)
        for preset in ("ddp", "zero2", "fsdp"):
            self.check(preset, 8, 2, 2)

    def test_parameters_of_a_unit_do_not_count(self):
        for preset in PRESETS:
            for params in (2, 20, 200):
                self.check(preset, 5, 1, params)
        self.check("fsdp", 5, 3, 200)




if __name__ == "__main__":
    PART = suite.Suite(*sys.argv[1:5])
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])

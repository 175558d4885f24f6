"""Runs cells, on the CPU device and on CUDA over the stand-ins.

In one process the stand-ins serve any number of cells: double_seed gives every
run other delays.  What a mutation may break runs in a process of its own
(mutations.py).
"""

import ctypes
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import scripted  # noqa: E402
import host  # noqa: E402
from cells import BY_NAME  # noqa: E402
from host import _ffi  # noqa: E402

RANK_TIMEOUT_S = 20


class Suite:
    def __init__(self, library, ops, doubles, image):
        self.paths = (library, ops, doubles, image)
        self.library = host.Library(library)
        self.ops = ctypes.CDLL(ops)
        # The library is told before it opens anything; the stand-ins read the
        # rest when they are loaded.
        self.hints = (f"cuda_library={doubles}/libcuda.so.1;"
                      f"nccl_library={doubles}/libnccl.so.2;"
                      f"cuda_image={image}")
        os.environ.setdefault("ALIQUOT_DOUBLE_DEVICES", "8")
        os.environ.setdefault("ALIQUOT_DOUBLE_DELAY_US", str(scripted.DELAY_US))
        self.doubles = scripted.Doubles(doubles)

    def place(self, device, rank):
        if device == "cpu":
            return {}
        return dict(device_type=_ffi.ALQ_DEVICE_CUDA, device_id=rank,
                    hints=self.hints.encode())

    def run(self, cell, device, seed=1, timeout_s=RANK_TIMEOUT_S, body=None):
        """Results of all ranks."""
        self.doubles.cuda.double_seed(ctypes.c_uint64(seed))
        if cell.processes and device == "cuda" and body is None:
            return self.run_processes(cell, seed)
        body = body or (lambda world: scripted.run(world, cell, self.ops,
                                                   self.doubles))
        return host.run_ranks(
            self.library, cell.ranks, body, mesh=cell.mesh,
            timeout_ns=int(timeout_s * 1e9),
            each=lambda rank: self.place(device, rank))

    def run_processes(self, cell, seed):
        ended = host.run_processes(
            __file__, self.paths[0], cell.ranks, CUDA_CELL=cell.name,
            CUDA_PATHS=json.dumps(self.paths), ALIQUOT_DOUBLE_SEED=str(seed))
        for code, _, errors in ended:
            if code != 0:
                raise AssertionError(f"a rank ended with {code}: {errors}")
        return [from_json(json.loads(out)) for _, out, _ in ended]

    def violations(self):
        self.doubles.cuda.double_check_memory()
        return self.doubles.cuda.double_violations()


def from_json(result):
    reports, seen = result
    return [r if r is None else tuple(r) for r in reports], seen


def rank_process():
    suite = Suite(*json.loads(os.environ["CUDA_PATHS"]))
    cell = BY_NAME[os.environ["CUDA_CELL"]]
    rank = int(os.environ["ALIQUOT_RANK"])
    world = host.World(suite.library, cell.mesh,
                       timeout_ns=RANK_TIMEOUT_S * 10**9,
                       **suite.place("cuda", rank))
    print(json.dumps(scripted.run(world, cell, suite.ops, suite.doubles)))
    world.close()
    world.release()
    assert suite.violations() == 0


def comparable(results, cell):
    """What must be the same on both devices."""
    return [([None if step not in cell.reports else r
              for step, r in enumerate(reports)], seen)
            for reports, seen in results]


if __name__ == "__main__":
    rank_process()

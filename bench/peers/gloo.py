"""The contestant Gloo, as torch.distributed runs it: gloo.py DIR, with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment.

Speaks the protocol of serve.h.
"""

import os
import sys
import time
from typing import Any, Dict, List

import torch
import torch.distributed as dist


def values(begin: int, count: int, rank: int) -> torch.Tensor:
    """Small integers: their sums are exact in any order."""
    at = torch.arange(begin, begin + count, dtype=torch.int64)
    return ((at * 7 + rank * 13) % 251).to(torch.float32)


class Gloo:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.memory: Dict[int, torch.Tensor] = {}

    def buffers(self, op: str, size: int) -> List[torch.Tensor]:
        count = size // 4
        if size not in self.memory:
            self.memory[size] = torch.zeros(2 * count)
        whole, part = self.memory[size], count // self.size
        src, dst = whole[:count], whole[count:]
        if op == "all_reduce":
            return [src, src]
        if op in ("all_gather", "gather"):
            src = src[:part]
        if op in ("reduce_scatter", "scatter"):
            dst = dst[:part]
        return [src, dst]

    def call(self, op: str, size: int) -> Any:
        src, dst = self.buffers(op, size)
        root = self.rank == 0
        if op == "all_reduce":
            return lambda: dist.all_reduce(dst)
        if op == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(dst, src)
        if op == "all_gather":
            return lambda: dist.all_gather_into_tensor(dst, src)
        if op == "gather":
            parts = list(dst.chunk(self.size)) if root else None
            return lambda: dist.gather(src, parts, dst=0)
        parts = list(src.chunk(self.size)) if root else None
        return lambda: dist.scatter(dst, parts, src=0)

    def expected(self, op: str, size: int) -> torch.Tensor:
        count = size // 4
        part = count // self.size
        if op == "all_reduce":
            return sum(values(0, count, r) for r in range(self.size))
        if op == "reduce_scatter":
            return sum(values(part * self.rank, part, r)
                       for r in range(self.size))
        if op == "scatter":
            return values(part * self.rank, part, 0)
        return torch.cat([values(0, part, r) for r in range(self.size)])

    def check(self, op: str, size: int) -> str:
        src, dst = self.buffers(op, size)
        if op != "all_reduce":
            dst.fill_(-1)
        src.copy_(values(0, src.numel(), self.rank))
        dist.barrier()
        self.call(op, size)()
        dist.barrier()
        good = (op == "gather" and self.rank != 0) or torch.equal(
            dst, self.expected(op, size))
        self.memory[size].zero_()
        return "ok" if good else "rank %d: wrong elements" % self.rank

    def run(self, op: str, size: int, calls: int) -> str:
        call = self.call(op, size)
        dist.barrier()
        begin = time.monotonic_ns()
        for _ in range(calls):
            call()
        end = time.monotonic_ns()
        dist.barrier()
        return "%d %d" % (begin, end)

    def answer(self, line: str) -> str:
        words = line.split()
        if words[3] != "private":
            return "no such memory: " + line
        if words[0] == "check":
            return self.check(words[1], int(words[2]))
        return self.run(words[1], int(words[2]), int(words[4]))


def main() -> int:
    gloo = Gloo()
    where = sys.argv[1]
    with open(os.path.join(where, "in-%d" % gloo.rank), encoding="ascii") as ask:
        with open(os.path.join(where, "out-%d" % gloo.rank), "w",
                  encoding="ascii") as out:
            print("ready", file=out, flush=True)
            for line in ask:
                if line.strip() == "end":
                    print("ok", file=out, flush=True)
                    dist.destroy_process_group()
                    return 0
                print(gloo.answer(line), file=out, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())

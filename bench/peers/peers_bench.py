"""Collectives of ours, Open MPI and Gloo in turn in one run, and the floors of
the same machine.

    peers_bench.py --build BUILD [--ranks 2,4] [--sizes 4K,...] [--out PATH]

See peers_report.py for what is measured.  Takes about 4 minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

from field import Entry, Field, Programs, World

from measure import (MOST_OTHERS, Samples, cores, health,  # noqa: E402
                     quantile, ratio)
from worlds import busy_seconds, own_seconds  # noqa: E402

import peers_report  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
SHARED, PRIVATE = Entry("ours", "shared"), Entry("ours", "private")
KEPT = Entry("open_mpi_kept", "private")
DEFAULT = Entry("open_mpi", "private")
GLOO = Entry("gloo", "private")
K, M = 1 << 10, 1 << 20
SIZES = {"4K": 4 * K, "64K": 64 * K, "1M": M, "64M": 64 * M}
OPS = ["all_reduce", "reduce_scatter", "all_gather"]
ROOTED = ["gather", "scatter"]  # against Gloo alone
# How long one turn takes, and how many there are.
BATCH_S, MOST_CALLS = 0.008, 2000
WARM_UP = 40  # calls; ours have chosen their way by then
ROUNDS, LARGE_ROUNDS = 15, 9

# Most of ours / theirs.
OPEN_MPI_SHARED = {
    2: {("all_reduce", 64 * M): 0.45, ("reduce_scatter", 64 * M): 0.35,
        ("all_gather", 64 * M): 0.8, ("all_reduce", M): 0.6,
        ("all_reduce", 4 * K): 1.0},
    4: {("all_reduce", 64 * M): 0.5, ("reduce_scatter", 64 * M): 0.35,
        ("all_gather", 64 * M): 0.9, ("all_reduce", M): 0.6,
        ("all_reduce", 4 * K): 0.9}}
OPEN_MPI_PRIVATE = {("all_reduce", 64 * M): 0.6,
                    ("reduce_scatter", 64 * M): 0.5,
                    ("all_gather", 64 * M): 0.95}


def target(ours: Entry, peer: Entry, ranks: int, op: str, size: int) -> Any:
    if peer == KEPT and ours == SHARED:
        return OPEN_MPI_SHARED[ranks].get((op, size))
    if peer == KEPT:
        return OPEN_MPI_PRIVATE.get((op, size))
    if peer == GLOO and ours == SHARED:
        if size <= M:
            return 0.25
        return 0.3 if op == "all_reduce" else 0.5
    return None


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.programs = Programs(os.path.join(options.build, "bin/peer_ours"),
                                 os.path.join(options.build,
                                              "bin/peer_open_mpi"))
        self.command = os.path.join(options.build, "bin/aliquot")
        self.results: Dict[str, Any] = dict(
            times=[], health=[], others=[], floors=[], call={}, noisy=False)

    def check_health(self, when: str) -> None:
        found = health(self.command, cores())
        self.results["health"].append(dict(when=when, **found))
        self.results["noisy"] |= bool(found["noisy"])
        print("%s: %s" % (when, "NOISY" if found["noisy"] else "quiet"),
              flush=True)

    def calls(self, world: World, entry: Entry, op: str, size: int) -> int:
        world.run(op, size, entry.buffers, WARM_UP)
        once = world.run(op, size, entry.buffers, 3)
        return max(1, min(MOST_CALLS, int(BATCH_S / once)))

    def take_turns(self, field: Dict[str, World], entries: List[Entry], op: str,
                   size: int) -> Samples:
        for entry in entries:
            field[entry.world].check(op, size, entry.buffers)
        calls = {entry: self.calls(field[entry.world], entry, op, size)
                 for entry in entries}
        seconds: Dict[Any, List[float]] = {entry: [] for entry in entries}
        for _ in range(ROUNDS if size <= M else LARGE_ROUNDS):
            for entry in entries:
                seconds[entry].append(field[entry.world].run(
                    op, size, entry.buffers, calls[entry]))
        return Samples(list(entries), seconds, 0.0)

    def case(self, field: Dict[str, World], op: str, size: int,
             ranks: int) -> None:
        entries = [SHARED, KEPT, PRIVATE, GLOO, DEFAULT]
        if op in ROOTED:
            entries = [SHARED, GLOO]
        samples = self.take_turns(field, entries, op, size)
        pairs = [(SHARED, KEPT), (PRIVATE, KEPT), (SHARED, DEFAULT),
                 (SHARED, GLOO)]
        for ours, peer in pairs:
            if ours not in entries or peer not in entries:
                continue
            found = ratio(samples, ours, peer)
            line = dict(
                ranks=ranks, op=op, bytes=size, ours=ours.buffers,
                peer=peer.world, target=target(ours, peer, ranks, op, size),
                ours_s=quantile(samples.seconds[ours], 0.5),
                peer_s=quantile(samples.seconds[peer], 0.5), **found)
            self.results["times"].append(line)
            print(peers_report.plain(line), flush=True)

    def field(self, ranks: int) -> None:
        with Field(["ours", "open_mpi_kept", "open_mpi", "gloo"], ranks,
                   self.programs) as field:
            pids = [os.getpid()] + descendants(os.getpid())
            wall, busy, own = time.monotonic(), busy_seconds(), own_seconds(
                pids)
            for op in OPS + ROOTED:
                for size in self.options.sizes:
                    self.case(field, op, size, ranks)
            wall = time.monotonic() - wall
            busy = busy_seconds() - busy
            others = max(0.0, busy - (own_seconds(pids) - own)) / (
                wall * cores())
        self.results["others"].append(others)
        self.results["noisy"] |= others > MOST_OTHERS

    def json_of(self, *command: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            subprocess.run([self.command, "bench", *command, "--json", path],
                           check=True, stdout=subprocess.DEVNULL, timeout=300)
            with open(path, encoding="utf-8") as file:
                return json.load(file)

    def floors(self) -> None:
        for fresh in (True, False):
            found = self.json_of(
                "coll", "--ops", ",".join(OPS), "--buffers", "shared,private",
                "--sizes", ",".join(str(size) for size in self.options.sizes),
                *(["--fresh"] if fresh else []))
            self.results["floors"] += [dict(line, fresh=fresh)
                                       for line in found["results"]]
            self.results["noisy"] |= bool(found["noisy"])
        self.results["call"] = self.json_of("call")

    def run(self) -> None:
        self.check_health("before")
        for ranks in self.options.ranks:
            self.field(ranks)
        self.floors()
        self.check_health("after")


def descendants(pid: int) -> List[int]:
    found: List[int] = []
    for thread in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/children" % (pid, thread),
                  encoding="ascii") as file:
            for child in map(int, file.read().split()):
                found += [child] + descendants(child)
    return found


def versions() -> Dict[str, str]:
    sys.path.insert(0, os.path.join(ROOT, "scripts"))
    import bench_report
    from importlib.metadata import version
    mpi = subprocess.run(["mpirun", "--version"], capture_output=True,
                         text=True, check=True).stdout.splitlines()[0]
    return {**dict(bench_report.facts()), "Open MPI": mpi.split()[-1],
            "Gloo": "of torch " + version("torch")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Collectives of ours, Open MPI and Gloo in turn in one "
                    "run, and the floors of the same machine.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"),
                        help="the build to measure (build/release)")
    parser.add_argument("--ranks", default="2,4",
                        help="numbers of ranks (2,4)")
    parser.add_argument("--sizes", default=",".join(SIZES),
                        help=f"some of {','.join(SIZES)} (all)")
    parser.add_argument("--out", default="", help="write PATH.md and PATH.json")
    options = parser.parse_args()
    try:
        options.ranks = [int(text) for text in options.ranks.split(",")]
        options.sizes = [SIZES[text] for text in options.sizes.split(",")]
    except (ValueError, KeyError) as wrong:
        parser.error(f"no such number of ranks, or size: {wrong}")
    facts, begin = versions(), time.monotonic()
    bench = Bench(options)
    bench.run()
    facts["took"] = "%.1f minutes" % ((time.monotonic() - begin) / 60)
    missed = peers_report.missed(bench.results)
    if options.out:
        peers_report.write(bench.results, facts, options.out)
        print("Wrote %s.md and .json" % options.out)
    if bench.results["noisy"]:
        print("NOISY: the machine was not quiet; these times mean little")
    print("%d targets missed" % missed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

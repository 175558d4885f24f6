"""Contestants as sets of rank processes, and what is read off them from
outside."""

import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
TIMEOUT_S = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class World:
    """All ranks of one contestant, asleep between commands."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        place = dict(
            ALIQUOT_WORLD_SIZE=str(size), OMP_NUM_THREADS="1",
            ALIQUOT_STORE="127.0.0.1:%d" % free_port(),
            ALIQUOT_SECRET=secrets.token_hex(16),
            GLOO_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo")
        self.ranks = [subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, "contestant.py"), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **place, "ALIQUOT_RANK": str(rank)})
            for rank in range(size)]

    def pids(self) -> List[int]:
        return [process.pid for process in self.ranks]

    def answers(self) -> List[Any]:
        deadline, found = time.monotonic() + TIMEOUT_S, []
        for rank, process in enumerate(self.ranks):
            left = max(deadline - time.monotonic(), 0.1)
            ready, _, _ = select.select([process.stdout], [], [], left)
            line = process.stdout.readline() if ready else ""
            if not line:
                raise RuntimeError("rank %d of %s %s" % (
                    rank, self.name, "ended with status %s" % process.wait(5)
                    if ready else "did not answer in %d s" % TIMEOUT_S))
            found.append(json.loads(line))
        return found

    def ask(self, line: str) -> List[Any]:
        for process in self.ranks:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return self.answers()

    def run(self, mode: str, tokens: int, steps: int,
            keeps: bool = False) -> float:
        """Seconds per step: from the first rank's begin to the last's end."""
        got = self.ask("run %s %d %d %d" % (mode, tokens, steps, keeps))
        return (max(a["end"] for a in got) - min(a["begin"] for a in got)
                ) / 1e9 / steps

    def close(self) -> None:
        try:
            if all(process.poll() is None for process in self.ranks):
                self.ask("end")
        finally:
            for process in self.ranks:
                try:
                    process.stdin.close()
                    process.wait(20)
                except (OSError, subprocess.TimeoutExpired):
                    process.kill()
                    process.wait()


class Worlds:
    """Several contestants, started one by one and ended together."""

    def __init__(self, names: List[str], size: int) -> None:
        self.all: Dict[str, World] = {}
        try:
            for name in names:
                self.all[name] = World(name, size)
                self.all[name].answers()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Dict[str, World]:
        return self.all

    def __exit__(self, *_: Any) -> None:
        for world in self.all.values():
            world.close()

    def pids(self) -> List[int]:
        return [pid for world in self.all.values() for pid in world.pids()]


def pss_kib(pid: int) -> int:
    with open("/proc/%d/smaps_rollup" % pid, encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


class PeakPss:
    """The largest PSS of any rank while the block runs, looked at often."""

    def __init__(self, world: World, every_s: float = 0.03) -> None:
        self.pids, self.every_s, self.kib = world.pids(), every_s, 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self.stop.wait(self.every_s):
            self.kib = max([self.kib] + [pss_kib(pid) for pid in self.pids])

    def __enter__(self) -> "PeakPss":
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop.set()
        self.thread.join()


def busy_seconds() -> float:
    """CPU time of everything on the machine so far, stolen time included."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(x) for x in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def own_seconds(pids: List[int]) -> float:
    total = time.process_time()
    for pid in pids:
        with open("/proc/%d/stat" % pid, encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total

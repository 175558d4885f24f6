"""The contestants' rank processes: started together, asleep between commands,
ended together."""

import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))
sys.dont_write_bytecode = True

from worlds import free_port  # noqa: E402

TIMEOUT_S = 120

# glibc keeps what is freed: a new buffer costs no page faults.
HEAP_KEPT = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40),
                 MALLOC_TOP_PAD_=str(64 << 20))


class Programs(NamedTuple):
    ours: str
    open_mpi: str


class Entry(NamedTuple):
    """A contestant with one kind of buffers."""
    world: str
    buffers: str


class World:
    """All ranks of one contestant."""

    def __init__(self, name: str, size: int, programs: Programs) -> None:
        self.name, self.size = name, size
        self.folder = tempfile.TemporaryDirectory(prefix="alq-peers-")
        self.pipes: List[Any] = []
        for rank in range(size):
            for way in ("in", "out"):
                os.mkfifo(self.path(way, rank))
            # Open both ways: neither end waits for the other, or sees an end.
            self.pipes.append([os.open(self.path(way, rank),
                                       os.O_RDWR | os.O_CLOEXEC)
                               for way in ("in", "out")])
        self.left = [b""] * size
        self.started = self.start(programs)

    def path(self, way: str, rank: int) -> str:
        return os.path.join(self.folder.name, "%s-%d" % (way, rank))

    def start(self, programs: Programs) -> List[Any]:
        base = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self.name.startswith("open_mpi"):
            if self.name == "open_mpi_kept":
                base.update(HEAP_KEPT)
            return [self.popen(
                ["mpirun", "--allow-run-as-root", "--oversubscribe",
                 "--bind-to", "none", "-n", str(self.size), programs.open_mpi,
                 self.folder.name], base)]
        if self.name == "gloo":
            base.update(WORLD_SIZE=str(self.size), MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo")
            return [self.popen(
                [sys.executable, "-B", os.path.join(HERE, "gloo.py"),
                 self.folder.name], {**base, "RANK": str(rank)})
                for rank in range(self.size)]
        base.update(ALIQUOT_WORLD_SIZE=str(self.size),
                    ALIQUOT_STORE="127.0.0.1:%d" % free_port(),
                    ALIQUOT_SECRET=secrets.token_hex(16))
        return [self.popen([programs.ours, self.folder.name],
                           {**base, "ALIQUOT_RANK": str(rank)})
                for rank in range(self.size)]

    @staticmethod
    def popen(command: List[str], env: Dict[str, str]) -> Any:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)

    def answer(self, rank: int, deadline: float) -> str:
        while b"\n" not in self.left[rank]:
            ready, _, _ = select.select([self.pipes[rank][1]], [], [], 0.5)
            if ready:
                self.left[rank] += os.read(self.pipes[rank][1], 65536)
                continue
            dead = [p for p in self.started if p.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise RuntimeError("rank %d of %s %s" % (
                    rank, self.name, "ended with status %d" %
                    dead[0].returncode if dead else "gave no answer"))
        line, _, self.left[rank] = self.left[rank].partition(b"\n")
        return line.decode()

    def answers(self) -> List[str]:
        deadline = time.monotonic() + TIMEOUT_S
        return [self.answer(rank, deadline) for rank in range(self.size)]

    def ask(self, line: str) -> List[str]:
        for pipes in self.pipes:
            os.write(pipes[0], (line + "\n").encode())
        return self.answers()

    def check(self, op: str, size: int, buffers: str) -> None:
        for answer in self.ask("check %s %d %s" % (op, size, buffers)):
            if answer != "ok":
                raise RuntimeError("%s, %s of %d bytes: %s" % (
                    self.name, op, size, answer))

    def run(self, op: str, size: int, buffers: str, calls: int) -> float:
        """Seconds per call: from the first rank's begin to the last's end."""
        got = [[int(x) for x in answer.split()] for answer in
               self.ask("run %s %d %s %d" % (op, size, buffers, calls))]
        return (max(g[1] for g in got) - min(g[0] for g in got)) / 1e9 / calls

    def close(self) -> None:
        try:
            if all(process.poll() is None for process in self.started):
                self.ask("end")
        finally:
            for process in self.started:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for pipe in [fd for both in self.pipes for fd in both]:
                os.close(pipe)
            self.folder.cleanup()


class Field:
    """Several worlds of one size; a context manager."""

    def __init__(self, names: List[str], size: int, programs: Programs) -> None:
        self.all: Dict[str, World] = {}
        try:
            for name in names:
                self.all[name] = World(name, size, programs)
            for world in self.all.values():
                for answer in world.answers():
                    assert answer == "ready", answer
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Dict[str, World]:
        return self.all

    def __exit__(self, *_: Any) -> None:
        for world in self.all.values():
            try:
                world.close()
            except (OSError, RuntimeError) as error:
                print("ending %s: %s" % (world.name, error), file=sys.stderr)

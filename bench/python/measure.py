"""Alternating measurements of contestants, and what they say: medians of ratios
of neighbouring steps, with the range that 80 % of them lie in."""

import json
import os
import subprocess
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Tuple

from worlds import PeakPss, World, Worlds, busy_seconds, own_seconds

Entry = Tuple[str, str]  # contestant, mode
MOST_OTHERS = 0.05  # of the machine's CPU time, taken by other programs


class Plan(NamedTuple):
    tokens: int
    rounds: int
    burst: int  # steps per turn


class Samples(NamedTuple):
    """Seconds per step of each entry, one per round, in the order taken."""
    order: List[Entry]
    seconds: Dict[Entry, List[float]]
    others: float  # share of the machine that others had meanwhile


def quantile(values: List[float], part: float) -> float:
    values = sorted(values)
    x = part * (len(values) - 1)
    i = int(x)
    j = min(i + 1, len(values) - 1)
    return values[i] + (values[j] - values[i]) * (x - i)


def spread(values: List[float]) -> Dict[str, Any]:
    return dict(median=quantile(values, 0.5), low=quantile(values, 0.1),
                high=quantile(values, 0.9), count=len(values))


def alternate(worlds: Dict[str, World], entries: List[Entry],
              plan: Plan) -> Samples:
    """All entries in turn, round after round; one warm-up turn before."""
    pids = [pid for world in worlds.values() for pid in world.pids()]
    seconds: Dict[Entry, List[float]] = {entry: [] for entry in entries}
    for name, mode in entries:
        worlds[name].run(mode, plan.tokens, 1)
    wall, busy, own = time.monotonic(), busy_seconds(), own_seconds(pids)
    for _ in range(plan.rounds):
        for entry in entries:
            seconds[entry].append(
                worlds[entry[0]].run(entry[1], plan.tokens, plan.burst))
    wall = time.monotonic() - wall
    others = max(0.0, busy_seconds() - busy - (own_seconds(pids) - own))
    return Samples(entries, seconds, others / (wall * cores()))


def ratio(samples: Samples, ours: Entry, peer: Entry) -> Dict[str, Any]:
    """Of neighbours in time: each turn of ours with the peer's turns just
    before and just after it, so that drift cancels."""
    a, b = samples.seconds[ours], samples.seconds[peer]
    first = samples.order.index(ours) < samples.order.index(peer)
    pairs = [x / y for x, y in zip(a, b)]
    pairs += [x / y for x, y in (zip(a[1:], b) if first else zip(a, b[1:]))]
    return spread(pairs)


def better_mode(samples: Samples, name: str) -> str:
    return min(("default", "fused"), key=lambda mode: quantile(
        samples.seconds[name, mode], 0.5))


def peaks(name: str, size: int,
          cases: List[Tuple[int, bool]]) -> Dict[Tuple[int, bool], int]:
    """Largest PSS of a rank in bytes, up to and with each case: tokens, and
    whether the loop keeps its loss; the contestant is alone on the machine."""
    found = {}
    with Worlds([name], size) as worlds:
        world = worlds[name]
        most = 0
        for case in cases:
            with PeakPss(world) as peak:
                world.run("on" if name.startswith("ours") else "fused", case[0],
                          8 if case[0] <= 256 else 5, keeps=case[1])
            most = max(most, peak.kib)
            found[case] = most * 1024
    return found


def cores() -> int:
    return len(os.sched_getaffinity(0))


def health(command: str, ranks: int = 2) -> Dict[str, Any]:
    """The self-check of `aliquot bench coll`: one loop alone and on all cores
    at once."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "health.json")
        subprocess.run([command, "bench", "coll", "-n", str(ranks), "--ops",
                        "barrier", "--pairs", "5", "--json", path], check=True,
                       stdout=subprocess.DEVNULL, timeout=120)
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file)["health_after"])

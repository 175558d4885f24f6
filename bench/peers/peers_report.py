"""The report of peers_bench.py: every ratio beside its target."""

import json
from typing import Any, Dict, List, Optional

HEAD = """# Against Open MPI and Gloo, measured

Written by `scripts/bench-peers`. Times depend on the machine; on a busy one
they mean little.

Every contestant is a set of processes of its own, one rank each, that sleeps in
a read while another is measured; all take turns, several times over, and each
turn is a batch of calls between two barriers of its own, timed from the first
rank's begin to the last's end. Ratios are medians of neighbouring turns, with
the range of the middle 80 %. f32 sums; "size" is the larger buffer of a rank;
all-reduce is in place, the others are not. Results are checked, element by
element, before anything is timed.

Our buffers are shared (`alq_buffer_alloc`) or private (malloc); the others' are
their own malloc. Open MPI's ranks run over shared memory with
process_vm_readv, not bound to cores; "heap kept" has glibc keep freed memory
(`MALLOC_MMAP_MAX_=0`, `MALLOC_TRIM_THRESHOLD_`), for what Open MPI allocates in
each call costs page faults otherwise. Gloo is that of PyTorch, called from
Python, over the loopback interface.

A bare loop does the reads and writes of an operation on memory that all ranks
map, without any of the library; in an all-reduce of shared buffers it writes sums
into all ranks' memory, in one of private buffers, where that is not possible,
ranks read them. Sources "written before each operation" are
what a program has after a computation. Those "left as they were" lie in the
caches of all cores that read them, so up to some MiB a bare loop on them moves
nothing from core to core, which private memory of another process always must.

Private buffers are compared with a second bare loop too, on private memory of
its own: what the other rank has is read by process_vm_readv, one call for a copy
and one for each MiB of a sum, and nothing else is done. What it takes more than
the loop on mapped memory is the price of that system call, which is the one way
into another process's memory that needs no second copy.
"""

NAMES = {"open_mpi_kept": "Open MPI, heap kept", "open_mpi": "Open MPI",
         "gloo": "Gloo"}
FLOOR = {"shared": 1.15, "private": 1.45}
CALLS_MOST = 1.15
FLOOR_FROM = 64 << 10  # below, a call costs more than the loop
FIRST_MOST, CALL_MOST_NS, RECORDER_MOST_NS = 2.0, 300, 100


def size_text(count: int) -> str:
    if count >= 1 << 20:
        return "%d MiB" % (count >> 20)
    return "%d KiB" % (count >> 10)


def us(seconds: float) -> str:
    value = seconds * 1e6
    return "%.2f" % value if value < 100 else "%.0f" % value


def ratio_text(found: Dict[str, Any]) -> str:
    low, high = found.get("low", found.get("p10")), found.get(
        "high", found.get("p90"))
    return "%.2f [%.2f-%.2f]" % (found["median"], low, high)


def plain(line: Dict[str, Any]) -> str:
    return "%d ranks %-14s %7s %-7s %10s us, %s of %s (%s us)%s" % (
        line["ranks"], line["op"], size_text(line["bytes"]), line["ours"],
        us(line["ours_s"]), ratio_text(line), NAMES[line["peer"]],
        us(line["peer_s"]), "" if line["target"] is None else
        "; target %.2f" % line["target"])


def verdict(measured: float, most: Optional[float], noisy: bool) -> str:
    if most is None:
        return ""
    if measured <= most:
        return "ok, NOISY" if noisy else "ok"
    return "MISSED, NOISY" if noisy else "MISSED"


def table(title: str, head: List[str], rows: List[List[str]]) -> List[str]:
    lines = ["", "## " + title, "", "| " + " | ".join(head) + " |",
             "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def peer_rows(results: Dict[str, Any], ranks: int) -> List[List[str]]:
    rows = []
    for line in results["times"]:
        if line["ranks"] != ranks:
            continue
        most = line["target"]
        rows.append([
            line["op"], size_text(line["bytes"]), line["ours"],
            NAMES[line["peer"]], us(line["ours_s"]), us(line["peer_s"]),
            ratio_text(line), "" if most is None else "%.2f" % most,
            verdict(line["median"], most, results["noisy"])])
    return rows


def floor_most(line: Dict[str, Any]) -> Optional[float]:
    return FLOOR[line["buffers"]] if line["bytes"] >= FLOOR_FROM else None


def floor_rows(results: Dict[str, Any], fresh: bool) -> List[List[str]]:
    rows = []
    for line in results["floors"]:
        if line["fresh"] != fresh:
            continue
        most = floor_most(line)
        rows.append([
            line["op"], size_text(line["bytes"]), line["buffers"],
            "in" if line["in_place"] else "out",
            us(line["seconds"]["median"]), us(line["bare_seconds"]["median"]),
            ratio_text(line["ratio"]), "" if most is None else "%.2f" % most,
            verdict(line["ratio"]["median"], most, results["noisy"])])
    return rows


def calls_most(line: Dict[str, Any]) -> Optional[float]:
    return CALLS_MOST if line["bytes"] >= FLOOR_FROM else None


def calls_rows(results: Dict[str, Any]) -> List[List[str]]:
    rows = []
    for line in results["floors"]:
        if "calls_ratio" not in line:
            continue
        most = calls_most(line)
        rows.append([
            line["op"], size_text(line["bytes"]),
            "in" if line["in_place"] else "out",
            "written" if line["fresh"] else "left",
            us(line["seconds"]["median"]), us(line["calls_seconds"]["median"]),
            ratio_text(line["calls_ratio"]),
            "" if most is None else "%.2f" % most,
            verdict(line["calls_ratio"]["median"], most, results["noisy"])])
    return rows


def call_lines(results: Dict[str, Any]) -> List[List[Any]]:
    """What, figure as text, measured, most."""
    call = results["call"]
    lines: List[List[Any]] = [
        ["a collective call with nobody to wait for, ns", "%.0f" %
         call["call_ns"], call["call_ns"], CALL_MOST_NS],
        ["the flight recorder's part of a call, ns", "%.0f" %
         call["recorder_ns"], call["recorder_ns"], RECORDER_MOST_NS]]
    for first in call["first"]:
        lines.append([
            "first all-reduce after init, %s, %s: %s us, then %s us; ratio" % (
                size_text(first["bytes"]), first["buffers"],
                us(first["first"]["median"]), us(first["later"]["median"])),
            ratio_text(first["ratio"]), first["ratio"]["median"], FIRST_MOST])
    return lines


def missed(results: Dict[str, Any]) -> int:
    checks = [(line["median"], line["target"]) for line in results["times"]]
    checks += [(line["ratio"]["median"], floor_most(line))
               for line in results["floors"]]
    checks += [(line["calls_ratio"]["median"], calls_most(line))
               for line in results["floors"] if "calls_ratio" in line]
    checks += [(line[2], line[3]) for line in call_lines(results)]
    return sum(most is not None and value > most for value, most in checks)


def text(results: Dict[str, Any], facts: Dict[str, str]) -> str:
    noisy = results["noisy"]
    lines = [HEAD, "| fact | |", "|---|---|"]
    lines += ["| %s | %s |" % item for item in facts.items()]
    lines += ["", "**%d targets missed.**" % missed(results)]
    if noisy:
        lines += ["", "**NOISY: the machine was not quiet; take no verdict from "
                  "this run.**"]
    for ranks in sorted({line["ranks"] for line in results["times"]}):
        lines += table("%d ranks" % ranks, [
            "operation", "size", "our buffers", "against", "ours, us",
            "theirs, us", "ratio", "target", "verdict"],
            peer_rows(results, ranks))
    for fresh, sources in ((True, "written before each operation"),
                           (False, "left as they were")):
        lines += table("Bare loops of the same reads and writes, 2 ranks, "
                       "sources " + sources, [
                           "operation", "size", "buffers", "place", "ours, us",
                           "bare, us", "ratio", "target", "verdict"],
                       floor_rows(results, fresh))
    lines += table("Bare loops of process_vm_readv, 2 ranks, private buffers", [
        "operation", "size", "place", "sources", "ours, us", "bare, us",
        "ratio", "target", "verdict"], calls_rows(results))
    lines += table("One call", ["what", "", "target", "verdict"], [
        [what, shown, "%g" % most, verdict(value, most, noisy)]
        for what, shown, value, most in call_lines(results)])
    lines += table("The machine", [
        "when", "one loop alone, 90 % / 10 %", "all cores at once / alone",
        "lost to others", ""], [
            [line["when"], "%.2f" % line["solo_spread"],
             "%.2f" % line["all_over_solo"], "%.0f %%" % (100 * line["stolen"]),
             "NOISY" if line["noisy"] else "quiet"]
            for line in results["health"]])
    lines += ["", "Other programs took %s of the machine's CPU time while the "
              "contestants were measured." % ", ".join(
                  "%.1f %%" % (100 * share) for share in results["others"])]
    return "\n".join(lines) + "\n"


def write(results: Dict[str, Any], facts: Dict[str, str], path: str) -> None:
    with open(path + ".md", "w", encoding="utf-8") as file:
        file.write(text(results, facts))
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(dict(facts=facts, **results), file, indent=1)
        file.write("\n")

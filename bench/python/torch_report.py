"""The report of torch_bench.py: every ratio beside its target, with a verdict
that a noisy machine does not get."""

import datetime
import json
from typing import Any, Dict, List, Optional

HEAD = """# PyTorch: step time and memory, measured

Written by `scripts/bench-torch`. Times depend on the machine; on a busy one
they mean little.

A GPT of 46 M parameters (width 512, 12 layers, vocabulary 8192) in f32, one
thread per rank; every contestant is a set of processes of its own that sleeps
while another trains, and all of a table take turns, a step or two each. Torch's
DDP and FSDP2 run over gloo with AdamW, the default or `fused=True`, whichever
was faster. Ratios are medians of neighbouring turns, with the range of the
middle 80 %. "No comm" is our own engine in the same processes and memory with
communication switched off (fault point `engine.comm`): all of its own work is
done, no data moves between ranks and none is waited for. PSS is a rank's
largest while the contestant trains alone, 8 steps of 64 tokens and then 5 of
1,024: the median of three runs of fresh processes. After these come 5 steps of
a loop that keeps each loss, and with it the graph of the step, over the next
forward: small blocks that lie scattered over the C library's heap then, and by
chance, let the heap of every contestant grow; so there is no target for that.
Contestants whose machine was not quiet take their turns again, all of a table.
"""


def verdict(measured: float, target: Optional[float], noisy: bool) -> str:
    if target is None:
        return ""
    if noisy:
        return "NOISY"
    return "ok" if measured <= target else "MISSED"


def table(title: str, head: List[str], rows: List[List[str]]) -> List[str]:
    lines = ["", "## " + title, "", "| " + " | ".join(head) + " |",
             "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def time_rows(results: Dict[str, Any]) -> List[List[str]]:
    rows = []
    for line in results["times"]:
        target = line["target"]
        rows.append([
            str(line["ranks"]), str(line["tokens"]), line["ours"],
            line["peer"], "%.3f" % line["ours_s"], "%.3f" % line["peer_s"],
            "%.2f [%.2f-%.2f]" % (line["median"], line["low"], line["high"]),
            str(line["count"]), "" if target is None else "%.2f" % target,
            verdict(line["median"], target, line["noisy"])])
    return rows


def memory_rows(results: Dict[str, Any]) -> List[List[str]]:
    rows = []
    for line in results["memory"]:
        target = line["target"]
        rows.append([
            str(line["ranks"]), str(line["tokens"]),
            "yes" if line["keeps"] else "", line["who"],
            "%.0f [%.0f-%.0f]" % tuple(
                line[key] / 1e6 for key in ("median", "low", "high")),
            "" if line["ratio"] is None else "%.2f" % line["ratio"],
            "" if target is None else "%.2f" % target,
            verdict(line["ratio"] or 0, target, False)])
    return rows


def health_rows(results: Dict[str, Any]) -> List[List[str]]:
    return [[line["when"], "%.2f" % line["solo_spread"],
             "%.2f" % line["all_over_solo"], "%.0f %%" % (
                 100 * line["stolen"]),
             "NOISY" if line["noisy"] else "quiet"]
            for line in results["health"]]


def text(results: Dict[str, Any], facts: Dict[str, str]) -> str:
    lines = [HEAD, "| fact | |", "|---|---|"]
    lines += ["| %s | %s |" % item for item in facts.items()]
    if results["noisy"]:
        lines += ["", "**NOISY: the machine was not quiet; no verdict on times "
                  "that were taken then.**"]
    lines += table("Step time", [
        "ranks", "tokens per rank", "ours", "against", "ours, s", "against, s",
        "ratio", "pairs", "target", "verdict"], time_rows(results))
    lines += table("Memory", [
        "ranks", "tokens per rank", "loss kept", "who",
        "peak PSS of a rank, MB", "of FSDP2's", "target",
        "verdict"], memory_rows(results))
    lines += table("The machine", [
        "when", "one loop alone, 90 % / 10 %", "all cores at once / alone",
        "lost to others", ""], health_rows(results))
    lines += ["", "Other programs took %s of the machine's CPU time while times "
              "were taken." % ", ".join("%.1f %%" % (100 * share)
                                        for share in results["others"])]
    return "\n".join(lines) + "\n"


def write(results: Dict[str, Any], facts: Dict[str, str], path: str) -> None:
    with open(path + ".md", "w", encoding="utf-8") as file:
        file.write(text(results, facts))
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump({**results, "facts": facts,
                   "date": datetime.date.today().isoformat()}, file, indent=1)
        file.write("\n")

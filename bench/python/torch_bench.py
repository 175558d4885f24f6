"""Step time and memory of a PyTorch model under torch's DDP and FSDP2 and under
aliquot.torch.shard, all in one run.

    torch_bench.py [--quick] [--ranks 2,4] [--tokens 64,256,1024] [--out PATH]
    torch_bench.py --again --out PATH

See torch_report.py for what is measured.  Takes 40 minutes, 3 with --quick.
Contestants that took turns on a machine that was not quiet do so again at the
end, and with --again: the other rows of PATH.json stay.
"""

import argparse
import datetime
import json
import os
import sys
import time
from typing import Any, Dict, List, Tuple

import torch_report
from measure import (MOST_OTHERS, Entry, Plan, Samples, alternate, better_mode,
                     cores, health, peaks, quantile, ratio, spread)
from worlds import Worlds

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
NAMES = {"fsdp2": "FSDP2", "ddp": "DDP", "ours-fsdp": "fsdp",
         "ours-fsdp-copy": "fsdp, copied", "ours-ddp": "ddp"}
PLANS = {64: Plan(64, 10, 2), 256: Plan(256, 8, 1), 1024: Plan(1024, 8, 1)}
QUICK = {64: Plan(64, 8, 1), 256: Plan(256, 5, 1), 1024: Plan(1024, 2, 1)}
# (ours, against): {ranks: {tokens: most}}
TARGETS: Dict[Tuple[Entry, str], Dict[int, Dict[int, float]]] = {
    (("ours-fsdp", "on"), "fsdp2"): {2: {64: 0.40, 256: 0.62, 1024: 0.88},
                                     4: {64: 0.40, 256: 0.68, 1024: 0.92}},
    (("ours-fsdp-copy", "on"), "fsdp2"): {},
    (("ours-ddp", "on"), "ddp"): {2: {64: 0.68, 256: 0.92, 1024: 0.98}},
    (("ours-fsdp", "on"), "ours-fsdp"): dict.fromkeys(
        (2, 4), {64: 1.08, 256: 1.04, 1024: 1.03}),
    (("ours-fsdp-copy", "on"), "ours-fsdp-copy"): dict.fromkeys(
        (2, 4), {64: 1.25, 256: 1.08, 1024: 1.05}),
    (("ours-ddp", "on"), "ours-ddp"): {},
}
REPEATS = 2  # of what was disturbed
PSS_RUNS = 3  # of fresh processes: how their heaps lie is chance
PSS_TARGETS = {64: 0.65, 1024: 0.85}
# Who takes turns with whom, by ranks: as many at once as memory holds.
FIELDS = {2: [["fsdp2", "ours-fsdp", "ours-fsdp-copy"], ["ddp", "ours-ddp"]],
          4: [["fsdp2", "ours-fsdp", "ours-fsdp-copy"]]}
ALONE = {2: ["fsdp2", "ours-fsdp", "ours-fsdp-copy", "ddp", "ours-ddp"],
         4: ["fsdp2", "ours-fsdp"]}


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.plans = QUICK if options.quick else PLANS
        self.results: Dict[str, Any] = dict(
            times=[], memory=[], health=[], others=[], noisy=False,
            quick=options.quick, again=[])

    def say(self, text: str) -> None:
        print(text, flush=True)

    def check_health(self, when: str) -> bool:
        found = health(self.options.command, cores())
        self.results["health"].append(dict(when=when, **found))
        self.say("%s: %s" % (when, "NOISY" if found["noisy"] else "quiet"))
        return bool(found["noisy"])

    def field(self, names: List[str], size: int) -> None:
        """One set of contestants that take turns."""
        peer, ours = names[0], names[1:]
        lines, noisy = [], self.check_health("before %s, %d ranks" % (
            NAMES[peer], size))
        with Worlds(names, size) as worlds:
            trial = alternate(worlds, [(peer, "default"), (peer, "fused")],
                              Plan(64, 3, 1))
            best = (peer, better_mode(trial, peer))
            for tokens in self.options.tokens:
                # Own pairs first: theirs is the finest difference.
                entries = [(name, mode) for name in ours
                           for mode in ("on", "off")]
                if size > 2 and tokens > 256:
                    entries.remove(("ours-fsdp-copy", "off"))
                samples = alternate(worlds, entries + [best],
                                    self.plans[tokens])
                noisy |= samples.others > MOST_OTHERS
                self.results["others"].append(samples.others)
                for name in ours:
                    for against in (best, (name, "off")):
                        if against in samples.order:
                            lines.append(self.line(samples, (name, "on"),
                                                   against, size, tokens))
        noisy |= self.check_health("after %s, %d ranks" % (NAMES[peer], size))
        for line in lines:
            line["noisy"] = noisy
        self.put(lines)

    def put(self, lines: List[Dict[str, Any]]) -> None:
        """Instead of older ones of the same contestants."""
        def key(line: Dict[str, Any]) -> Tuple[Any, ...]:
            return line["ranks"], line["tokens"], line["ours"]

        fresh = {key(line) for line in lines}
        times = [line for line in self.results["times"]
                 if key(line) not in fresh] + lines
        # Stable: by ranks, FSDP2 before DDP.
        self.results["times"] = sorted(times, key=lambda line: (
            line["ranks"], line["ours"] == NAMES["ours-ddp"]))
        self.results["noisy"] = any(line["noisy"] for line in times)

    def line(self, samples: Samples, ours: Entry, peer: Entry, size: int,
             tokens: int) -> Dict[str, Any]:
        found = ratio(samples, ours, peer)
        label = "no comm" if peer[1] == "off" else "%s, %s" % (
            NAMES[peer[0]], peer[1])
        target = TARGETS[ours, peer[0]].get(size, {}).get(tokens)
        self.say("%d ranks, %4d tokens: %-13s %.3f s, %.2f [%.2f-%.2f] of %s" %
                 (size, tokens, NAMES[ours[0]],
                  quantile(samples.seconds[ours], 0.5), found["median"],
                  found["low"], found["high"], label) + (
                      "" if target is None else "; target %.2f" % target))
        return dict(ranks=size, tokens=tokens, ours=NAMES[ours[0]], peer=label,
                    ours_s=quantile(samples.seconds[ours], 0.5),
                    peer_s=quantile(samples.seconds[peer], 0.5),
                    target=target, **found)

    def memory(self, size: int) -> None:
        names = ALONE[size][:2] if self.options.quick else ALONE[size]
        cases = [(t, False) for t in (64, 1024) if t in self.options.tokens]
        cases += [(t, True) for t in (1024,) if t in self.options.tokens]
        runs = [{name: peaks(name, size, cases) for name in names}
                for _ in range(PSS_RUNS)]
        for name in names:
            for case in cases:
                found = spread([run[name][case] for run in runs])
                base = spread([run[names[0]][case] for run in runs])["median"]
                part = found["median"] / base
                ours = name.startswith("ours-fsdp") and not case[1]
                self.say("%d ranks, %4d tokens%s: %s: peak PSS %.0f MB, %.2f "
                         "of FSDP2's" % (size, case[0],
                                         ", loss kept" if case[1] else "",
                                         NAMES[name], found["median"] / 1e6,
                                         part))
                self.results["memory"].append(dict(
                    ranks=size, tokens=case[0], keeps=case[1], who=NAMES[name],
                    **found, ratio=None if name == names[0] else part,
                    target=PSS_TARGETS[case[0]] if ours else None))

    def run(self) -> None:
        for size in self.options.ranks:
            if self.options.memory:
                self.memory(size)
            for names in FIELDS[size]:
                self.field(names, size)
        for _ in range(REPEATS):
            self.run_again()

    def run_again(self) -> None:
        noisy = {(line["ranks"], line["ours"])
                 for line in self.results["times"] if line["noisy"]}
        for size, fields in FIELDS.items():
            for names in fields:
                if (size, NAMES[names[1]]) in noisy:
                    self.field(names, size)
                    self.results["again"].append("%s, %d ranks (%s)" % (
                        NAMES[names[0]], size,
                        datetime.datetime.now().isoformat(" ", "minutes")))

    def go_on_with(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:
            self.results = {"again": [], **json.load(file)}


def numbers(text: str) -> List[int]:
    return [int(part) for part in text.split(",")]


def machine() -> Dict[str, str]:
    sys.path.insert(0, os.path.join(ROOT, "scripts"))
    import bench_report
    from importlib.metadata import version
    return {**dict(bench_report.facts()), "torch": version("torch")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Step time and memory of a PyTorch model under torch's "
                    "DDP and FSDP2 and under aliquot.torch.shard.")
    parser.add_argument("--quick", action="store_true",
                        help="2 ranks, 64 and 256 tokens, few rounds")
    parser.add_argument("--ranks", type=numbers,
                        help="numbers of ranks, such as 2,4")
    parser.add_argument("--tokens", type=numbers,
                        help="tokens per rank: some of 64,256,1024")
    parser.add_argument("--no-memory", dest="memory", action="store_false",
                        help="leave the table of memory out")
    parser.add_argument("--again", action="store_true",
                        help="only what was disturbed when PATH was written")
    parser.add_argument("--out", default="",
                        help="write PATH.md and PATH.json")
    parser.add_argument("--command", default=os.path.join(
        ROOT, "build", "release", "bin", "aliquot"),
        help="the aliquot command, for its self-check")
    options = parser.parse_args()
    options.ranks = options.ranks or ([2] if options.quick else [2, 4])
    options.tokens = options.tokens or (
        [64, 256] if options.quick else [64, 256, 1024])
    if not set(options.tokens) <= set(PLANS):
        parser.error("--tokens: some of " + ",".join(map(str, PLANS)))
    if options.again and not os.path.exists(options.out + ".json"):
        parser.error("--again: there is no %s.json" % (options.out or "PATH"))
    facts, begin = machine(), time.monotonic()
    bench = Bench(options)
    if options.again:
        bench.go_on_with(options.out + ".json")
        facts = bench.results.pop("facts")
        bench.run_again()
    else:
        bench.run()
        facts["took"] = "%.1f minutes" % ((time.monotonic() - begin) / 60)
    if bench.results["again"]:
        facts["measured again"] = "; ".join(bench.results["again"])
    if options.out:
        torch_report.write(bench.results, facts, options.out)
        print("Wrote %s.md and .json" % options.out)
    if bench.results["noisy"]:
        print("NOISY: the machine was not quiet; these times mean little")
    return 0


if __name__ == "__main__":
    sys.exit(main())

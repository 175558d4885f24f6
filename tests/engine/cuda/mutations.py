"""Faults put into the CUDA path, each of which the cells must notice.

A fault is put in by the stand-ins (tests/doubles/*/double.h) once the engine is
committed, in a process of its own, cell after cell and schedule after schedule
until its results differ from the CPU device's, the stand-ins report a violation
or a call fails.  Every place that waits for or records an event is found by
running the cells, so a new one can not be forgotten: it has to be named here.

Usage: mutations.py LIBRARY OPS DOUBLES IMAGE --check|--write TABLE
                    [--only NAME...]
"""

import argparse
import collections
import concurrent.futures
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import suite  # noqa: E402
from suite import host, scripted  # noqa: E402
from cells import BY_NAME, CELLS  # noqa: E402

SCHEDULES = int(os.environ.get("CUDA_SCHEDULES", 20))
TIMEOUT_S = 5      # of a world with a fault in it
PROCESS_S = 150    # for all its schedules
WORKERS = 4
NOTICED = ("wrong bits", "violation", "error", "crash")

Mutation = collections.namedtuple("Mutation", "name does spec cells at")

# What waits are for, by event and stream; several: told apart by the function.
WAITS = {
    ("read", "gather"): {
        "evict": "freed slots are poisoned after their readers",
        "gather": "gathers come after the readers of their slot"},
    ("updated", "gather"): {
        "gather": "gathers come after the update of the shards",
        "set_steps": "the number is set after the step in flight"},
    ("updated", "caller"): {
        "await": "passes come after the update of the parameters",
        "open_grads": "new gradients come after the update that reads old ones",
    },
    ("gathered", "caller"): {"": "passes come after the gather"},
    ("reduced", "caller"): {"": "new gradients come after the reduction of the "
                                "slot's last ones"},
    ("written", "reduce"): {"": "reductions come after the gradients"},
    ("gathers", "caller"): {"": "the update comes after gathers of what it "
                                "changes"},
    ("reductions", "caller"): {"": "the decision comes after all reductions"},
    ("met", "caller"): {"": "a step ends after all ranks have met"},
    ("used", "gather"): {"": "memory is freed after the caller's last work"},
}
# Places that are not needed over NCCL, by stream and function: the meeting waits
# for the decision, and NCCL's groups put their operations one after the other on
# all streams anyway ("the NCCL operation before").  Other groups do not.
IMPLIED = {("other", "reduce", "meet_after")}
# Cells that need a wait, where not many do.
CAPTURED = ("FSDP, captured, stops early",)
NEEDS = {
    ("read", "gather"): ("FSDP, not poisoned", "FSDP, f64, last, two streams"),
    ("updated", "gather"): ("FSDP, f64, last, two streams",
                            "FSDP, no prefetch", "FSDP, numbered"),
    ("updated", "caller"): ("DDP, empty steps",
                            "ZERO1, f64, 4 ranks, two streams"),
    ("gathers", "caller"): CAPTURED,
    ("met", "caller"): CAPTURED,
}
RECORDS = {
    "updated": "parameters are updated", "used": "the caller's last work",
    "gathers": "all gathers", "reductions": "all reductions",
    "gathered": "a unit is gathered", "reduced": "gradients are reduced",
    "met": "all ranks have met", "written": "gradients are written", "read": "the slot's readers are through",
}
RELEASED = tuple(c.name for c in CELLS if c.drops)
FSDP = ("FSDP, f64, last, two streams", "FSDP, no prefetch", "FSDP",
        "FSDP, prefetch 3, each")
MIXED = ("ZERO1, f64, 4 ranks, two streams", "ZERO2, each", "DDP",
         "FSDP, no prefetch", "each unit another")
BF16 = ("ZERO2, bf16, 4 ranks", "FSDP, bf16, prefetch 3",
        "HSDP, bf16, each, processes", "DDP, last, bf16, 4 ranks")
HALVED = ("FSDP, bf16, prefetch 3",)


def kernel(name, what, spec, cells, why):
    return Mutation(f"{name}: {what}", why, f"name={name},{spec}:0", cells,
                    "committed")


def of_kernels():
    swapped = "its first two arguments are swapped"
    tail = "its last element is left out"
    grid = "its last block is left out"
    lost = "it is not launched"
    for name, cells in (("adamw", MIXED), ("sgd", ("ZERO2, f64, SGD, last",)),
                        ("cast", HALVED + BF16), ("accumulate", MIXED),
                        ("norm", MIXED)):
        if name != "norm":
            yield kernel(name, "swapped arguments", "swap_arguments", cells,
                         swapped)
        yield kernel(name, "tail off by one", "short_tail", cells, tail)
        yield kernel(name, "wrong grid", "short_grid", cells, grid)
    finite = ("alone, not finite", "ZERO1, not finite, unused",
              "FSDP, not finite, no report")
    yield kernel("finite", "tail off by one", "short_tail", finite, tail)
    yield kernel("finite", "wrong grid", "short_grid", finite, grid)
    yield kernel("fill", "tail off by one", "short_tail",
                 ("FSDP, a parameter unused",), tail)
    for name, why in (
            ("share", "shares are stale: those of the step before"),
            ("decide", "nothing is decided"),
            ("rates", "learning rates and decays are not set")):
        yield kernel(name, "not launched", "drop_launch", MIXED, why)
    yield kernel("adamw", "not launched", "drop_launch", MIXED, lost)
    yield kernel("adamw", "skip ignored", "ignore_skip", finite,
                 "a skipped step is taken")
    yield kernel("decide", "swapped arguments", "swap_arguments", MIXED,
                 swapped)


def of_launches():
    yield Mutation("launch: default stream", "the 5th launch goes to the legacy "
                   "default stream", "default_stream:5", MIXED, "committed")
    for name in ("adamw", "decide", "norm", "share"):
        yield kernel(name, "another stream", "other_stream", FSDP + MIXED,
                     "it is launched on another stream of the device")
    yield Mutation("launch: late arguments", "arguments are read when the kernel "
                   "runs, not when it is launched",
                   "name=adamw,late_arguments:0", MIXED, "committed")
    yield Mutation("copy: short", "a copy lacks its last byte", "short_copy:0",
                   MIXED, "committed")
    yield Mutation("early free", "memory is freed while streams use it: events "
                   "count as done too early", "early_done:1", RELEASED,
                   "released")
    yield Mutation("early done", "what is not done counts as done",
                   "early_done:1", FSDP, "committed")
    yield Mutation("communicator order", "one rank issues two communicators' "
                   "operations the other way round", "nccl_swap:3:1",
                   ("FSDP, prefetch 3, each", "FSDP"), "committed")


def of_sites(sites):
    """One for each place that waits or records: (mutations, without a name)."""
    found, unknown, chained = [], [], set()
    for (kind, event, stream, function), keys in sorted(sites.items()):
        cells = RELEASED if function == "retire" else FSDP + MIXED + (
            "FSDP, held, evaluated", "FSDP, collectives")
        cells = NEEDS.get((event, stream), cells)
        if kind == "record":
            continue
        if (event, function) == ("other", "chain"):
            for offset in sorted({key.split()[1] for key in keys}):
                chained.add(offset)
            continue
        if (event, stream, function) in IMPLIED:
            continue
        names = WAITS.get((event, stream))
        if names is None:
            unknown.append((kind, event, stream, function))
            continue
        why = names.get("") or names.get(function)
        if why is None:
            unknown.append((kind, event, stream, function))
            continue
        where = function if "" not in names else ""
        name = f"wait: {event} -> {stream}" + (f" in {where}" if where else "")
        at = "released" if function == "retire" else "committed"
        # A place is one address, or several where it was inlined.
        for key in keys:
            found.append(Mutation(name, f"lost, so not: {why}",
                                  f"site={key},drop_wait:0", cells, at))
    for offset in sorted(chained):
        found.append(Mutation(
            "wait: the NCCL operation before", "lost, so not: operations of a "
            "device's communicators come one after the other",
            f"site=wait {offset},drop_wait:0",
            ("FSDP, collectives", *FSDP), "committed"))
    events = {key[1] for key in sites if key[0] == "record"} - {"other"}
    for event in sorted(events):
        if event not in RECORDS:
            unknown.append(("record", event))
            continue
        for key in [k for (kind, e, _, _), keys in sites.items()
                    if kind == "record" and e == event for k in keys]:
            found.append(Mutation(
                f"record: {event}", f"lost: {RECORDS[event]}",
                f"site={key},drop_record:0",
                {"gathers": CAPTURED, "met": CAPTURED, "used": RELEASED,
                 "read": ("FSDP, not poisoned", *FSDP)}.get(
                     event, FSDP + MIXED), "committed"))
    return found, unknown


# ------------------------------------------------------ in a process of its own
def arm(part, spec):
    if spec.startswith("nccl_swap:"):
        part.doubles.nccl.double_nccl_swap(
            *(int(x) if i else ctypes.c_int64(int(x))
              for i, x in enumerate(spec.split(":")[1:])))
        return
    code = part.doubles.cuda.double_mutate(spec.encode())
    assert code == 0, spec


def faulty(part, cell, seed, mutation, known={}):
    """"" or what noticed the fault."""
    if cell.name not in known:
        known[cell.name] = suite.comparable(part.run(cell, "cpu"), cell)
    expected = known[cell.name]
    barrier = threading.Barrier(cell.ranks, timeout=host.TIMEOUT_S)

    def at(point, model):
        if point != mutation.at or model.world.stream is None:
            return
        if barrier.wait() == 0:
            arm(part, mutation.spec)
        barrier.wait()

    def body(world):
        return scripted.run(world, cell, part.ops, part.doubles, at)

    try:
        got = suite.comparable(
            part.run(cell, "cuda", seed, TIMEOUT_S, body), cell)
    except (AssertionError, TimeoutError) as error:
        if part.violations():
            return "violation"
        refused = isinstance(error.__cause__,
                             (host.Refused, scripted.DriverError))
        return "error" if refused else f"failed: {error}"
    if part.violations():
        return "violation"
    return "" if got == expected else "wrong bits"


def worker(paths, mutation):
    part = suite.Suite(*paths)
    hits = 0
    for seed in range(1, SCHEDULES + 1):
        for name in mutation.cells:
            how = faulty(part, BY_NAME[name], seed, mutation)
            if how:
                print(json.dumps([how, name, seed]), flush=True)
                os._exit(0)
            if not mutation.spec.startswith("nccl"):
                hits += part.doubles.cuda.double_mutated()
            part.doubles.cuda.double_mutate(None)
    print(json.dumps(["survived" if hits else "never put in", "", 0]),
          flush=True)


def list_sites(paths, names):
    """Offsets by what they are for, over these cells."""
    part = suite.Suite(*paths)
    part.doubles.cuda.double_sites(1)
    for name in names:
        part.run(BY_NAME[name], "cuda", 1)
    size = part.doubles.cuda.double_sites_text(None, 0)
    text = ctypes.create_string_buffer(size)
    part.doubles.cuda.double_sites_text(text, size)
    print(json.dumps([line.rsplit(" ", 1)[0]
                      for line in text.value.decode().splitlines()]))


# ------------------------------------------------------------------- the runner
def child(paths, what, argument):
    return subprocess.run(
        [sys.executable, "-B", __file__, *paths, what, json.dumps(argument)],
        capture_output=True, text=True, timeout=PROCESS_S, check=False)


def function_at(symbols, offset):
    """Last part of the function's name that this address is in."""
    name = ""
    for begin, symbol in symbols:
        if begin > offset:
            break
        name = symbol
    return name.split("(")[0].split("::")[-1]


def read_symbols(library):
    text = subprocess.run(["nm", "-C", library], capture_output=True, text=True,
                          check=True).stdout
    found = []
    for line in text.splitlines():
        parts = line.split(" ", 2)
        if len(parts) == 3 and parts[0] and parts[1] in "tTwW":
            found.append((int(parts[0], 16), parts[2]))
    return sorted(found)


def all_sites(paths):
    ran = child(paths, "sites", [
        c.name for c in CELLS if not c.captures and not c.processes])
    if ran.returncode != 0:
        raise SystemExit(ran.stderr)
    symbols = read_symbols(paths[0])
    sites = collections.defaultdict(list)
    for key in json.loads(ran.stdout.splitlines()[-1]):
        kind, offset, event, stream = key.split()
        function = function_at(symbols, int(offset, 16) - 1)
        sites[(kind, event, stream, function)].append(key)
    return sites


def judged(paths, mutation):
    start = time.monotonic()
    how, cell, seed = outcome(paths, mutation)
    print(f"{'ok ' if how in NOTICED else 'BAD'} {mutation.name} "
          f"[{mutation.spec}]: {how} ({cell}, schedule {seed}), "
          f"{time.monotonic() - start:.1f} s", flush=True)
    return how


def outcome(paths, mutation):
    try:
        ran = child(paths, "fault", mutation._asdict())
    except subprocess.TimeoutExpired:
        return ["hangs", "", 0]
    if ran.returncode == 97:  # the stand-in looked at its memory at the end
        return ["violation", mutation.cells[0], 0]
    if ran.returncode == -signal.SIGSEGV:
        return ["crash", mutation.cells[0], 0]
    if ran.returncode != 0 or not ran.stdout:
        return [f"ended with {ran.returncode}: {ran.stderr[-400:]}", "", 0]
    return json.loads(ran.stdout.splitlines()[-1])


HEAD = """# Faults that the engine's cells notice

From `tests/engine/cuda/mutations.py`, over the stand-ins of `tests/doubles` (double:
no GPU was used).  Each fault is put into the CUDA path once the engine is committed;
the cells of `tests/engine/cuda/cells.py` run under up to 20 schedules until the fault
is noticed: wrong bits (values, states, gradients, norms or reports differ from the
CPU device's), a violation that the stand-ins report, or an error of a call.  The
test `engine_cuda_mutations` runs all of them, fails if one is not noticed, and
checks the first two columns; what notices a race first may differ between runs.

| Fault | What it does | Noticed by |
|---|---|---|
"""


def table(rows):
    lines = [f"| {name} | {does} | {how} |" for name, does, how in rows]
    return HEAD + "\n".join(lines) + "\n"


def first_columns(text):
    return [line.split("|")[1:3] for line in text.splitlines()
            if line.startswith("| ")][1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs=4)
    parser.add_argument("--check")
    parser.add_argument("--write")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    sites = all_sites(args.paths)
    waits, unknown = of_sites(sites)
    if unknown:
        raise SystemExit(f"places without a name: {unknown}; name them in "
                         "WAITS or RECORDS")
    mutations = [*waits, *of_kernels(), *of_launches()]
    missing = ([f for key in WAITS for f in WAITS[key]
                if not any(s[1:3] == key and f in ("", s[3]) for s in sites)])
    if missing:
        raise SystemExit(f"no such place any more: {missing}")
    if args.only:
        mutations = [m for m in mutations
                     if any(n in m.name for n in args.only)]
    rows, bad = {}, []
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(lambda m: judged(args.paths, m), mutations))
    for m, how in zip(mutations, results):
        if how not in NOTICED:
            bad.append(m.name)
        known = rows.setdefault((m.name, m.does), [])
        if how not in known:
            known.append(how)
    text = table([(*key, ", ".join(sorted(hows)))
                  for key, hows in rows.items()])
    print(f"double: {len(mutations)} faults, {len(rows)} kinds, "
          f"{len(bad)} not noticed")
    if bad:
        raise SystemExit(f"not noticed: {bad}")
    if args.write:
        with open(args.write, "w", encoding="utf-8") as out:
            out.write(text)
    if args.check and not args.only:
        with open(args.check, encoding="utf-8") as committed:
            if first_columns(committed.read()) != first_columns(text):
                raise SystemExit(f"{args.check} is not current: mutations.py "
                                 "... --write it")


if __name__ == "__main__":
    if sys.argv[5:6] == ["fault"]:
        fields = json.loads(sys.argv[6])
        worker(sys.argv[1:5], Mutation(**fields))
    elif sys.argv[5:6] == ["sites"]:
        list_sites(sys.argv[1:5], json.loads(sys.argv[6]))
    else:
        main()

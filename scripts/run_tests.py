"""Runs ctest suite by suite: seconds, budgets, and one line of counts.

Usage: run_tests.py BUILD_DIR [--full] [SUITE...]

A suite is a test's first label; tests labelled "long" run only with --full.
A test program that passes counts with all its cases (Boost.Test and unittest
say how many they ran); one that fails counts as one failure; one that skips
itself is named and counts as nothing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

# Seconds on 2 cores.  ALIQUOT_TEST_BUDGET scales them on a slower machine.
BUDGETS = {"unit": 90, "multi": 240, "abi": 60, "fault": 90, "fuzz": 120,
           "double": 150, "install": 45, "docs": 180, "engine": 300,
           "python": 700,
           # Builds everything once more unless the compiler cache knows it.
           "wheel": 420}
OTHER_BUDGET = 60
FULL_FACTOR = 8
# Suites whose tests do not measure time and start no ranks of their own.
PARALLEL = {"unit", "abi", "install"}
CASES = (re.compile(r"Running (\d+) test cases?"),
         re.compile(r"^Ran (\d+) tests? in ", re.M),
         re.compile(r"^(\d+) checks, 0 failures", re.M))


def ctest(build, *options):
    return subprocess.run(["ctest", "--test-dir", build, *options],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)


def suites(build, full):
    """Test names by suite, in the order of BUDGETS."""
    listing = subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    found = {}
    for test in json.loads(listing.stdout)["tests"]:
        labels = [label for p in test.get("properties", [])
                  if p["name"] == "LABELS" for label in p["value"]]
        if "long" in labels and not full:
            continue
        suite = next((x for x in labels if x != "long"), "other")
        found.setdefault(suite, []).append(test["name"])
    order = list(BUDGETS) + sorted(set(found) - set(BUDGETS))
    return {name: found[name] for name in order if name in found}


def cases_of(output):
    counts = [int(n) for pattern in CASES for n in pattern.findall(output)]
    return sum(counts) or 1


def run_suite(build, suite, names):
    """(passed cases, failed programs, skipped names, seconds)."""
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.xml")
        started = time.monotonic()
        run = ctest(build, "-R", "^(" + "|".join(map(re.escape, names)) + ")$",
                    "--output-on-failure", "--output-junit", report,
                    "--test-output-size-passed", "1000000",
                    "-j", str(os.cpu_count()) if suite in PARALLEL else "1")
        seconds = time.monotonic() - started
        if run.returncode != 0:
            print(run.stdout)
        passed, failed, seen, skipped = 0, 0, 0, []
        root = ElementTree.parse(report).getroot()
        for case in root.iter("testcase"):
            seen += 1
            skip = case.find("skipped")
            if case.get("status") == "run":
                passed += cases_of(case.findtext("system-out") or "")
            elif skip is not None and skip.get("message", "").startswith(
                    "SKIP_"):
                skipped.append(case.get("name"))
            else:
                failed += 1
        if seen != len(names):
            print(f"{suite}: {len(names)} tests expected, {seen} ran")
            failed += max(1, len(names) - seen)
    return passed, failed, skipped, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("suites", nargs="*")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()

    found = suites(args.build, args.full)
    unknown = set(args.suites) - set(found)
    if unknown:
        print(f"no such suite: {', '.join(sorted(unknown))}; there are: "
              f"{', '.join(found)}", file=sys.stderr)
        return 2
    factor = float(os.environ.get("ALIQUOT_TEST_BUDGET", "1"))
    factor *= FULL_FACTOR if args.full else 1
    passed = failed = 0
    rows, skipped = [], []
    for suite in args.suites or found:
        good, bad, skips, seconds = run_suite(args.build, suite, found[suite])
        budget = BUDGETS.get(suite, OTHER_BUDGET) * factor
        late = seconds > budget
        bad += late
        note = "  OVER BUDGET" if late else ""
        rows.append(f"{suite:<10}{seconds:7.1f} s of {budget:5.0f} s"
                    f"{good:7d} passed{bad:4d} failed{note}")
        print(rows[-1], flush=True)
        passed, failed = passed + good, failed + bad
        skipped += skips
    if failed:
        print("\n".join(["", "suites:"] + rows))
    if any("OVER BUDGET" in row for row in rows):
        print("over budget: a slower or a busy machine needs "
              "ALIQUOT_TEST_BUDGET=2, or more")
    if skipped:
        print(f"skipped, for what they need is not here: {', '.join(skipped)} "
              "(scripts/setup --with ecosystem,cuda)")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())

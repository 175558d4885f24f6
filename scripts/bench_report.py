"""A benchmark's output as a report, with the facts of the machine.

Usage: bench_report.py [--title TITLE] OUTPUT_FILE

Facts that matter for the figures, and no name of a machine or a person.
"""

import argparse
import datetime
import os
import platform
import re
import subprocess


def first(pattern, path):
    with open(path, encoding="utf-8") as file:
        found = re.search(pattern, file.read(), re.M)
    return found.group(1).strip() if found else "unknown"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True,
                          check=True).stdout.strip()


def facts():
    memory = int(first(r"^MemTotal:\s+(\d+)", "/proc/meminfo"))
    changed = output("git", "status", "--porcelain", "--", "src", "kernels",
                     "tools", "include", "bench")
    commit = output("git", "rev-parse", "--short=12", "HEAD")
    yield "date", datetime.date.today().isoformat()
    yield "processor", first(r"^model name\s*:(.*)", "/proc/cpuinfo")
    yield "cores", str(len(os.sched_getaffinity(0)))
    yield "memory", f"{memory / 2**20:.1f} GiB"
    yield "kernel", platform.release().split("-")[0]
    yield "system", first(r'^PRETTY_NAME="(.*)"', "/etc/os-release")
    yield "compiler", output("g++", "--version").splitlines()[0]
    yield "load before", f"{os.getloadavg()[2]:.2f} over 15 minutes"
    yield "source", commit + (" with changes" if changed else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--title", default="Collectives, measured")
    parser.add_argument("file")
    args = parser.parse_args()
    with open(args.file, encoding="utf-8") as file:
        text = file.read().rstrip()
    print(f"# {args.title}\n")
    print("Written by `scripts/bench`. Times depend on the machine; on a busy "
          "one they mean\nlittle.\n")
    print("| fact | |\n|---|---|")
    for name, value in facts():
        print(f"| {name} | {value} |")
    print(f"\n```\n{text}\n```")


if __name__ == "__main__":
    main()

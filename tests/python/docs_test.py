"""The Python of README.md and of the pages for Python users, as it stands there.

A section (##) is one program: its ```python blocks in order, over 2 ranks.  One
called "... model ..." is put before those that follow it.  Side by side, in a
table, the blocks are programs of their own that print the same losses.  A
```diff block is two programs: what there was, and what there is.
"""

import os
import re
import subprocess
import sys
import unittest

import ranks

RANKS = 2
PAGES = ("README.md", "docs/python.md", "docs/migration.md")
TIMEOUT_S = 150


def blocks(text):
    """(first line's number, source) of each ```python block of a section."""
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        yield text[:found.start(1)].count("\n"), found[1]


def programs(page):
    """(title, source) of all programs of a page; lines keep their numbers."""
    with open(os.path.join(ranks.ROOT, page), encoding="utf-8") as file:
        text = file.read()
    before, at = "", 0
    for part in re.split(r"^(?=## )", text, flags=re.M):
        title = part.split("\n", 1)[0].strip("# ")
        found = [(at + line, source) for line, source in blocks(part)
                 if "_ffi" not in source]  # readme_test.py has that one
        at += part.count("\n")
        if "<table>" in part:
            for side, (line, source) in zip("before after".split(), found):
                yield f"{title}, {side}", padded(before, [(line, source)])
        elif found and "model" in title.lower():
            before = padded("", found)
        elif found:
            yield title, padded(before, found)
        for source in re.findall(r"^```diff\n(.*?)^```", part, re.S | re.M):
            for side, mark in (("before", "-"), ("after", "+")):
                yield f"{title}, {side}", "".join(
                    line[1:] or "\n" for line in source.splitlines(True)
                    if line[0] in (" ", mark, "\n"))


def padded(before, found):
    """The blocks at the lines where they stand in the file."""
    out = before
    for line, source in found:
        out += "\n" * (line - out.count("\n")) + source
    return out


def run_page():
    """All programs of a page, one after the other, or the one that is named; a
    rank of the test."""
    page, only = os.environ["TEST_PAGE"], os.environ.get("TEST_PROGRAM")
    for title, source in programs(page):
        if only not in (None, title):
            continue
        print(f"== {title}", flush=True)
        name = os.path.join(ranks.ROOT, page)
        exec(compile(source, name, "exec"), {"__name__": "__main__"})


class Pages(unittest.TestCase):
    def run_page(self, page, **variables):
        command = os.path.join(
            os.path.dirname(os.path.dirname(os.environ["ALIQUOT_LIBRARY"])),
            "bin", "aliquot")
        run = subprocess.run(
            [command, "run", "-n", str(RANKS), "--", sys.executable, "-B",
             os.path.abspath(__file__), "--rank", "run_page"], text=True,
            env={**os.environ, "TEST_PAGE": page, "OMP_NUM_THREADS": "1",
                 **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        return run.stdout

    def test_snippets_run(self):
        """On every rank, to their ends."""
        for page in PAGES[:2]:
            with self.subTest(page=page):
                out = self.run_page(page)
                titles = [title for title, _ in programs(page)]
                self.assertGreater(len(titles), 2)
                for title in titles:
                    self.assertEqual(out.count(f"== {title}\n"), RANKS, out)

    def test_before_and_after_agree(self):
        """Each in a world of its own: gloo's process group, made twice in one
        process, may find the store's keys of the first time and hang."""
        losses = []
        for title, _ in programs(PAGES[2]):
            out = self.run_page(PAGES[2], TEST_PROGRAM=title)
            losses.append(sorted(re.findall(r"\[(\d)\] loss (\S+)", out)))
            self.assertEqual([int(rank) for rank, _ in losses[-1]],
                             list(range(RANKS)), out)
        self.assertEqual(len(losses), 4)
        for before, after in zip(losses[::2], losses[1::2]):
            for (_, one), (_, two) in zip(before, after):
                self.assertAlmostEqual(float(one), float(two), delta=1e-6)

    def test_all_blocks_are_known(self):
        """No block is of a language that nobody runs."""
        for page in PAGES:
            with open(os.path.join(ranks.ROOT, page), encoding="utf-8") as file:
                kinds = re.findall(r"^```(.+)$", file.read(), re.M)
            self.assertLessEqual(set(kinds), {"python", "diff", "sh", "c"})


if __name__ == "__main__":
    ranks.main(globals())

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
    """All programs of a page, one after the other; a rank of the test."""
    page = os.environ["TEST_PAGE"]
    for title, source in programs(page):
        print(f"== {title}", flush=True)
        name = os.path.join(ranks.ROOT, page)
        exec(compile(source, name, "exec"), {"__name__": "__main__"})


class Pages(unittest.TestCase):
    def run_page(self, page):
        command = os.path.join(
            os.path.dirname(os.path.dirname(os.environ["ALIQUOT_LIBRARY"])),
            "bin", "aliquot")
        run = subprocess.run(
            [command, "run", "-n", str(RANKS), "--", sys.executable, "-B",
             os.path.abspath(__file__), "--rank", "run_page"], text=True,
            env={**os.environ, "TEST_PAGE": page, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        return run.stdout

    def test_snippets_run(self):
        """On every rank, to their ends."""
        for page in PAGES:
            with self.subTest(page=page):
                out = self.run_page(page)
                titles = [title for title, _ in programs(page)]
                self.assertGreater(len(titles), 2)
                for title in titles:
                    self.assertEqual(out.count(f"== {title}\n"), RANKS, out)

    def test_before_and_after_agree(self):
        out = self.run_page("docs/migration.md")
        for rank in range(RANKS):
            parts = re.split(r"== .*, (?:before|after)", "\n".join(
                line for line in out.splitlines()
                if line.startswith(f"[{rank}]")))[1:]
            losses = [float(re.search(r"loss ([\d.e-]+)", part)[1])
                      for part in parts]
            self.assertEqual(len(losses), 4)
            for before, after in zip(losses[::2], losses[1::2]):
                self.assertAlmostEqual(before, after, delta=1e-5 * before)

    def test_all_blocks_are_known(self):
        """No block is of a language that nobody runs."""
        for page in PAGES:
            with open(os.path.join(ranks.ROOT, page), encoding="utf-8") as file:
                kinds = re.findall(r"^```(.+)$", file.read(), re.M)
            self.assertLessEqual(set(kinds), {"python", "diff", "sh", "c"})


if __name__ == "__main__":
    ranks.main(globals())

"""examples/torch_gpt.py: learns, alone and over ranks, and draws its bar."""

import os
import re
import subprocess
import sys
import unittest

import ranks

EXAMPLE = os.path.join(ranks.ROOT, "examples", "torch_gpt.py")
SMALL = ["--steps", "40", "--batch", "4", "--length", "64", "--dim", "64",
         "--layers", "2", "--max-bytes", "300000", "--eval-batches", "4"]
END = re.compile(r"loss (\S+) nats per byte on text not seen, "
                 r"unigram entropy (\S+)")


def run(*before, more=()):
    done = subprocess.run(
        [*before, EXAMPLE, *SMALL, *more], capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=120, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done


class Example(unittest.TestCase):
    def check(self, done, size):
        self.assertIn(f"{size} rank(s)", done.stdout)
        loss, unigram = map(float, END.search(done.stdout).groups())
        self.assertGreater(unigram, 2.5)
        self.assertLess(loss, 4.2)  # 5.55 before the first step
        self.assertIn("40/40  loss", done.stderr)
        self.assertEqual(done.stderr.count("s left"), 11)

    def test_alone(self):
        self.check(run(sys.executable), 1)

    def test_under_aliquot_run(self):
        command = os.path.join(os.path.dirname(os.path.dirname(
            os.environ["ALIQUOT_LIBRARY"])), "bin", "aliquot")
        for more in (["--strategy", "fsdp"],
                     ["--strategy", "hsdp", "--mesh", "dp_shard=2", "--data",
                      os.path.join(ranks.ROOT, "docs")]):
            self.check(run(command, "run", "-n", "2", "--", sys.executable,
                           more=more), 2)

    def test_under_torchrun(self):
        self.check(run(sys.executable, "-m", "torch.distributed.run",
                       "--standalone", "--nproc-per-node", "2",
                       more=["--strategy", "zero1"]), 2)

    def test_an_import_and_two_lines(self):
        with open(EXAMPLE, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.rstrip().endswith(
                "# aliquot")]
        self.assertEqual(len(lines), 3)
        self.assertTrue(lines[0].startswith("import aliquot.torch as at "))
        self.assertTrue(lines[1].startswith("model = at.shard(model"))
        self.assertTrue(lines[2].startswith("optimizer = at.AdamW("))

    def test_says_what_is_wrong(self):
        done = subprocess.run(
            [sys.executable, EXAMPLE, "--data", "/nowhere"], text=True,
            capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no files there", done.stderr)


if __name__ == "__main__":
    ranks.main(globals())

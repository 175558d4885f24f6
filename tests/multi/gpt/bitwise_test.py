"""N ranks with one microbatch each have the bits of one rank with N.

Losses, gradient norms, held-out losses and a hash of all weights after 20
steps, for every dtype, over threads and over processes, and in two runs.
Usage: bitwise_test.py GPT ALIQUOT
"""
import sys
import unittest

from runs import Workplace, numbers

RANKS = (2, 3, 4, 8)
STEPS = ["--steps", "20", "--eval-every", "10", "--eval-batches", "5"]


class Bitwise(unittest.TestCase):
    """ddp against single."""

    def setUp(self):
        self.place = Workplace()
        self.addCleanup(self.place.cleanup)

    def train(self, args, ranks=1, how="alone"):
        return numbers(self.place.train([*STEPS, *args], ranks, how))

    def check(self, dtype):
        for ranks in RANKS:
            common = ["--dtype", dtype, "--global-batch", str(ranks)]
            one = self.train([*common, "--strategy", "single"])
            self.assertEqual(len(one), 21)
            for how in ("threads", "processes"):
                with self.subTest(dtype=dtype, ranks=ranks, how=how):
                    many = self.train([*common, "--strategy", "ddp"], ranks,
                                      how)
                    self.assertEqual(one, many)

    def test_f64(self):
        self.check("f64")

    def test_f32(self):
        self.check("f32")

    def test_bf16(self):
        self.check("bf16")

    def test_two_runs_alike(self):
        args = ["--global-batch", "4", "--strategy", "ddp"]
        self.assertEqual(self.train(args, 4, "threads"),
                         self.train(args, 4, "threads"))

    def test_tied_and_checkpoint(self):
        common = ["--global-batch", "4", "--tied"]
        one = self.train([*common, "--strategy", "single"])
        many = self.train(
            [*common, "--strategy", "ddp", "--checkpoint", "block"], 4,
            "threads")
        self.assertEqual(one, many)

    def test_accumulation(self):
        """Deferred sums on 2 ranks x 3 are one rank's nested 2x3."""
        common = ["--global-batch", "6"]
        one = self.train([*common, "--strategy", "single", "--nesting", "2x3"])
        many = self.train([*common, "--strategy", "ddp", "--defer", "last"], 2,
                          "threads")
        self.assertEqual(one, many)

    def test_other_numbers_are_noticed(self):
        """The comparison can fail: another seed gives other bits."""
        args = ["--global-batch", "2", "--strategy", "single"]
        one, other = self.train(args), self.train([*args, "--seed", "2"])
        self.assertNotEqual(one[0], other[0])
        self.assertNotEqual(one[-1], other[-1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

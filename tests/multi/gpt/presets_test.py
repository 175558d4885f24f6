"""Every placement has the bits of one rank that is told the same nesting.

Losses, gradient norms (clipped), held-out losses and a hash of all weights
after 20 steps of 2 microbatches per rank, for zero1, zero2, fsdp (copied and
mapped) and hsdp, every dtype, over threads and processes; what must not matter
(prefetch, checkpointing, how a gather works) does not.  Freed memory is NaN.
Usage: presets_test.py GPT ALIQUOT
"""
import sys
import unittest

from runs import Workplace, numbers

STEPS = ["--steps", "20", "--eval-every", "10", "--eval-batches", "5",
         "--poison"]
MICROBATCHES = 2
RANKS = (2, 3, 4, 8)
# name -> (options, defers: microbatches are summed before ranks)
SHARDED = {
    "ddp": (["--strategy", "ddp"], True),
    "zero1": (["--strategy", "zero1"], True),
    "zero2": (["--strategy", "zero2"], False),
    "zero2 deferred": (["--strategy", "zero2", "--defer", "last"], True),
    "fsdp copied": (["--strategy", "fsdp", "--gather", "copy"], False),
    "fsdp mapped": (["--strategy", "fsdp", "--gather", "map"], False),
    "fsdp deferred": (["--strategy", "fsdp", "--defer", "last"], True),
    "fsdp, whole root": (["--strategy", "fsdp", "--replicate-root", "--defer",
                          "each"], False),
}
NEUTRAL = (["--prefetch", "-1"], ["--prefetch", "3"],
           ["--checkpoint", "block"])


class Presets(unittest.TestCase):
    def setUp(self):
        self.place = Workplace()
        self.addCleanup(self.place.cleanup)

    def train(self, args, ranks=1, how="alone"):
        return numbers(self.place.train([*STEPS, *args], ranks, how))

    def single(self, common, nesting):
        return self.train([*common, "--strategy", "single", "--nesting",
                           nesting])

    def check_sharded(self, dtype, ranks):
        common = ["--dtype", dtype, "--tied", "--global-batch",
                  str(ranks * MICROBATCHES)]
        ones = {True: self.single(common, f"{ranks}x{MICROBATCHES}"),
                False: self.single(common, f"{MICROBATCHES}x{ranks}")}
        for name, (args, defers) in SHARDED.items():
            how = "processes" if ranks == 4 else "threads"
            with self.subTest(dtype=dtype, ranks=ranks, preset=name, how=how):
                self.assertEqual(ones[defers],
                                 self.train([*common, *args], ranks, how))

    def test_f64(self):
        for ranks in RANKS:
            self.check_sharded("f64", ranks)

    def test_f32(self):
        for ranks in RANKS:
            self.check_sharded("f32", ranks)

    def test_bf16(self):
        for ranks in RANKS:
            self.check_sharded("bf16", ranks)

    def test_hsdp(self):
        for replicas, shards in ((2, 2), (2, 4), (4, 2)):
            for dtype in ("f32", "f64", "bf16"):
                ranks = replicas * shards
                common = ["--dtype", dtype, "--global-batch",
                          str(ranks * MICROBATCHES)]
                mesh = f"dp_replicate={replicas},dp_shard={shards}"
                with self.subTest(mesh=mesh, dtype=dtype):
                    self.assertEqual(
                        self.single(common,
                                    f"{replicas}x{MICROBATCHES}x{shards}"),
                        self.train([*common, "--strategy", "hsdp", "--mesh",
                                    mesh], ranks, "threads"))

    def test_what_must_not_matter(self):
        common = ["--global-batch", "4", "--strategy", "fsdp"]
        plain = self.train(common, 4, "threads")
        for extra in NEUTRAL:
            for gather in ("copy", "map"):
                with self.subTest(extra=extra, gather=gather):
                    self.assertEqual(
                        plain, self.train([*common, *extra, "--gather", gather],
                                          4, "threads"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

"""The gpt command: what it refuses, how it says so, and what it prints.

Usage: command_test.py GPT ALIQUOT
"""
import os
import sys
import unittest

from runs import TINY, Workplace


class Command(unittest.TestCase):
    """One process."""

    def setUp(self):
        self.place = Workplace()
        self.addCleanup(self.place.cleanup)

    def refused(self, args, part, code=1):
        got, _, err = self.place.call(args)
        self.assertEqual(got, code, err)
        self.assertIn(part, err)

    def with_data(self, *args):
        return [*TINY, "--data", self.place.text, *args]

    def test_wrong_flags(self):
        self.refused(self.with_data("--colour", "red"), "--colour", 2)
        self.refused(self.with_data("--dtype", "f8"), "bf16|f32|f64", 2)
        self.refused(self.with_data("--strategy", "magic"), "'magic'", 2)
        self.refused(self.with_data("--steps", "0"), "--steps", 2)
        self.refused(self.with_data("--ranks", "2"), "--threads", 2)
        self.refused(TINY, "--data", 2)

    def test_impossible_models(self):
        self.refused(self.with_data("--heads", "3"), "--hidden 32")
        self.refused(self.with_data("--kv-heads", "3"), "--kv-heads 3")
        self.refused(self.with_data("--micro-batch", "5"),
                     "--global-batch 16")

    def test_bad_data(self):
        self.refused([*TINY, "--data", "/no/such/place"], "/no/such/place")
        self.refused(self.with_data("--seq", "100000"), "too little text")
        binary = os.path.join(self.place.name, "binary")
        with open(binary, "wb") as file:
            file.write(b"\xff\0" * 5000)
        self.refused([*TINY, "--data", binary], "not UTF-8 text")

    def test_unwritable_json(self):
        self.refused(self.with_data("--json", "/no/such/place/run.json"),
                     "/no/such/place/run.json")

    def test_ranks_must_divide_the_batch(self):
        """The reason is shown, and no rank waits for another."""
        got, _, err = self.place.call(self.with_data(
            "--threads", "--ranks", "3", "--global-batch", "4"))
        self.assertEqual(got, 1)
        self.assertIn("not a multiple of 3 ranks", err)

    def test_engine_errors_are_shown(self):
        got, _, err = self.place.call(self.with_data("--mesh", "dp_shard=3"))
        self.assertEqual(got, 1)
        self.assertIn("ALQ_INVALID_ARGUMENT: ", err)

    def test_learns_and_reports(self):
        lines = self.place.train(["--steps", "120", "--global-batch", "8",
                                  "--eval-every", "60"])
        self.assertEqual([line["step"] for line in lines[:-1]],
                         list(range(1, 121)))
        last = lines[-1]
        self.assertTrue(last["done"])
        self.assertGreater(lines[0]["loss"], 5)
        self.assertLess(last["loss"], lines[0]["loss"] - 2)
        self.assertLess(last["bigram"], last["unigram"])
        self.assertIn("held_out", lines[59])
        self.assertNotIn("held_out", lines[58])
        for key in ("grad_norm", "tokens_per_s", "peak_bytes"):
            self.assertGreater(lines[0][key], 0)
        self.assertGreaterEqual(lines[0]["exposed_comm_s"], 0)

    def test_shows_lines_and_a_bar(self):
        args = self.with_data("--steps", "3", "--global-batch", "2")
        _, out, _ = self.place.call([*args, "--progress", "lines"])
        self.assertIn("step     3/3", out)
        self.assertIn("unigram", out)
        _, _, err = self.place.call([*args, "--progress", "bar"])
        self.assertIn("3/3", err)
        self.assertIn("ETA 0:00", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

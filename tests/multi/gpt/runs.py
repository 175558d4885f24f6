"""Runs the gpt program on a tiny model and reads what it wrote."""
import json
import os
import subprocess
import sys
import tempfile

GPT, ALIQUOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
TIMEOUT_S = 60

TINY = ["--layers", "2", "--hidden", "32", "--heads", "4", "--kv-heads", "2",
        "--ffn", "40", "--seq", "16", "--micro-batch", "1", "--warmup", "4",
        "--lr", "0.01", "--progress", "none"]


def write_text(folder):
    """Some 40 KB of words, different everywhere."""
    path = os.path.join(folder, "words.txt")
    state = 12345
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(7000):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            file.write("%x " % (state >> 46))
    return path


class Workplace(tempfile.TemporaryDirectory):
    """A folder with a text in it."""

    def __init__(self):
        super().__init__(prefix="gpt-test-")
        self.text = write_text(self.name)

    def call(self, args, prefix=(), timeout=TIMEOUT_S, env=None):
        """Runs gpt; returns (exit code, standard output, standard error)."""
        done = subprocess.run(
            [*prefix, GPT, *args], capture_output=True, text=True,
            timeout=timeout, check=False, env={**os.environ, **(env or {})})
        return done.returncode, done.stdout, done.stderr

    def train(self, args, ranks=1, how="alone", env=None):
        """Trains the tiny model; returns the JSON lines it wrote."""
        path = os.path.join(self.name, "run.json")
        prefix = ()
        more = ["--data", self.text, "--json", path, "--hash"]
        if how == "threads":
            more += ["--threads", "--ranks", str(ranks)]
        elif how == "processes":
            prefix = (ALIQUOT, "run", "-n", str(ranks), "--")
        code, out, err = self.call([*TINY, *args, *more], prefix,
                                   env=env)
        if code != 0:
            raise AssertionError("gpt %s (%d ranks, %s) ended with %d:\n%s%s" % (
                " ".join(args), ranks, how, code, out, err))
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        os.unlink(path)
        return lines


def numbers(lines):
    """What must be equal to the last bit, whatever the layout."""
    steps = [(line["step"], line["loss"], line["grad_norm"],
              line.get("held_out")) for line in lines[:-1]]
    return steps + [(lines[-1]["hash"], lines[-1]["held_out"])]

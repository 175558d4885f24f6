"""The engine's memory, seen from outside: an allocation probe and smaps.

Usage: memory_test.py MEMORY_HOST ALLOC_PROBE [unittest options]
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import unittest

HOST, PROBE = sys.argv[1:3]
TIMEOUT_S = 90
SLACK = 2 << 20
DDP, ZERO1, ZERO2, FSDP = 2, 3, 4, 5  # ALQ_STRATEGY_*
AUTO, COPY, MAP = 0, 1, 2             # ALQ_GATHER_*
PLANS = [("ddp", DDP, AUTO), ("ddp copy", DDP, COPY), ("zero1", ZERO1, AUTO), ("zero2", ZERO2, AUTO),
         ("fsdp copy", FSDP, COPY), ("fsdp map", FSDP, MAP)]


def run(ranks, strategy, gather, microbatches=1, steps=6):
    """What each rank, a process of its own, saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    place = {"LD_PRELOAD": PROBE, "ALIQUOT_WORLD_SIZE": str(ranks),
             "ALIQUOT_LOCAL_SIZE": str(ranks), "ALIQUOT_STORE": address,
             "ALIQUOT_SECRET": secrets.token_hex(16)}
    numbers = [str(n) for n in (strategy, gather, microbatches, steps)]
    children = [subprocess.Popen(
        [HOST, *numbers], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **place, "ALIQUOT_RANK": str(rank),
                        "ALIQUOT_LOCAL_RANK": str(rank)})
        for rank in range(ranks)]
    try:
        texts = [child.communicate(timeout=TIMEOUT_S) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for child, (_, errors) in zip(children, texts):
        assert child.returncode == 0, errors
    return [json.loads(out) for out, _ in texts]


class Memory(unittest.TestCase):
    def check(self, seen):
        for rank in seen:
            with self.subTest(**rank):
                # Had the probe seen nothing at all, it would prove nothing.
                self.assertGreater(rank["setup_large"], 0)
                self.assertEqual(rank["large"], 0)
                self.assertLessEqual(rank["growth"], rank["plan"] + SLACK)
                self.assertGreater(rank["growth"], rank["plan"] // 2)

    def test_every_plan(self):
        for name, strategy, gather in PLANS:
            for microbatches in (1, 3):
                with self.subTest(plan=name, microbatches=microbatches):
                    self.check(run(2, strategy, gather, microbatches))

    def test_four_ranks(self):
        """Sharded states take a quarter, apart from alignment, and processes
        get smaller by what the plan says."""
        whole = run(4, DDP, COPY)
        self.check(whole)
        for gather in (COPY, MAP):
            parts = run(4, FSDP, gather)
            self.check(parts)
            for part in parts:
                self.assertLess(abs(part["states"] * 4 - whole[0]["states"]),
                                0.02 * whole[0]["states"])
                saved = whole[0]["growth"] - part["growth"]
                promised = whole[0]["plan"] - part["plan"]
                self.assertLess(abs(saved - promised), SLACK)

    def test_host_needs_the_probe(self):
        """Without it the counts would be 0, whatever the library did."""
        done = subprocess.run([HOST, "1", "0", "1", "2"], capture_output=True,
                              text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("alloc_probe is not loaded", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

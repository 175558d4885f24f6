"""A NumPy model trains in the engine as it trains alone.

Usage: numpy_test.py LIBRARY [unittest options]
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import unittest

import host
import numpy as np
import numpy_gpt as gpt
from host import _ffi
from numpy_adapter import NumpyHost

LIBRARY_PATH = sys.argv[1]
LIBRARY = host.Library(LIBRARY_PATH)
STEPS, MICRO = 6, 2
STEP = dict(lr=0.01, weight_decay=0.1)
GATHER = {"copy": _ffi.ALQ_GATHER_COPY, "map": _ffi.ALQ_GATHER_MAP}


def tokens(rank, step, micro):
    """Every microbatch has other data, and not the same amount of it."""
    rng = np.random.default_rng([rank, step, micro])
    return rng.integers(0, gpt.VOCAB, (1 + (rank + micro) % 3, gpt.SEQ + 1))


def weight_of(batch):
    return float(batch.shape[0] * (batch.shape[1] - 1))


def plain(ranks):
    """Losses [step][rank][microbatch], then the weights."""
    memory, losses = gpt.PlainHost(gpt.initial()), []
    for step in range(STEPS):
        total, row = 0.0, []
        for rank in range(ranks):
            row.append([])
            for micro in range(MICRO):
                batch = tokens(rank, step, micro)
                weight = weight_of(batch)
                row[-1].append(gpt.microbatch(memory, batch, weight))
                total += weight
        memory.step(total, **STEP, **host.ADAMW)
        losses.append(row)
    return losses, memory.params


def in_engine(world, strategy, **plan):
    memory = NumpyHost(world, gpt.UNITS, gpt.initial(), microbatches=MICRO,
                       strategy=host.STRATEGIES[strategy], **plan)
    losses, weights = [], []
    for step in range(STEPS):
        losses.append([])
        for micro in range(MICRO):
            batch = tokens(world.rank, step, micro)
            scale = memory.engine.microbatch(
                _ffi.ALQ_TRAIN, weight_of(batch), micro == MICRO - 1)
            losses[-1].append(gpt.microbatch(memory, batch, scale))
            memory.engine.microbatch_end()
        report = memory.engine.step(**STEP)
        assert report.skipped == 0 and report.step == step + 1
    for unit, ids in enumerate(memory.ids):
        weights.append([memory.read(unit, i) for i in range(len(ids))])
    memory.engine.close()
    return losses, weights


class Training(unittest.TestCase):
    def compare(self, results, ranks):
        losses, weights = plain(ranks)
        for rank, (mine, values) in enumerate(results):
            np.testing.assert_allclose(mine, [row[rank] for row in losses],
                                       rtol=1e-13)
            for unit, expect in zip(values, weights):
                for value, want in zip(unit, expect):
                    np.testing.assert_allclose(value, want, atol=1e-11)

    def check(self, ranks, strategy, **plan):
        with self.subTest(ranks=ranks, strategy=strategy, **plan):
            self.compare(host.run_ranks(
                LIBRARY, ranks,
                lambda world: in_engine(world, strategy, **plan)), ranks)

    def test_backward_is_the_derivative(self):
        arrays, batch, h = gpt.initial(), tokens(0, 0, 1), 1e-6
        memory = gpt.PlainHost(arrays)
        gpt.microbatch(memory, batch, 1.0)
        rng = np.random.default_rng(5)
        for params, grads in zip(arrays, memory.grads):
            for value, grad in zip(params, grads):
                way = rng.normal(size=value.shape)
                value += h * way
                high = gpt.microbatch(memory, batch)
                value -= 2 * h * way
                low = gpt.microbatch(memory, batch)
                value += h * way
                self.assertAlmostEqual((high - low) / (2 * h),
                                       np.sum(grad * way), delta=1e-8)

    def test_one_rank(self):
        for strategy in host.STRATEGIES:
            self.check(1, strategy)

    def test_replicated_parameters(self):
        for ranks in (2, 4):
            for strategy in ("ddp", "zero1", "zero2"):
                self.check(ranks, strategy)

    def test_sharded_parameters(self):
        for ranks in (2, 4):
            for gather in GATHER.values():
                self.check(ranks, "fsdp", gather=gather)

    def test_prefetch_and_slots(self):
        for prefetch, most in ((-1, 1), (1, 1), (2, 2), (9, 1)):
            self.check(2, "fsdp", gather=_ffi.ALQ_GATHER_COPY,
                       prefetch=prefetch, max_open=most)

    def test_held_passes_leave_no_order(self):
        """Ranks that ran different passes of held units gather alike later."""
        last = gpt.LAYERS

        def body(world):
            memory = NumpyHost(
                world, gpt.UNITS, gpt.initial(), phases=7,
                strategy=_ffi.ALQ_STRATEGY_FSDP, gather=_ffi.ALQ_GATHER_COPY)
            engine = memory.engine
            engine.call("alq_unit_hold", _ffi.ALQ_UNIT_ALL)
            engine.microbatch(_ffi.ALQ_EVAL)
            for _ in range(3 * world.rank):
                gpt.microbatch(memory, tokens(0, 0, 0))
            engine.microbatch_end()
            engine.call("alq_unit_unhold", _ffi.ALQ_UNIT_ALL)
            engine.call("alq_param_touch")
            engine.microbatch(_ffi.ALQ_EVAL)
            value = memory.begin(last, False)[1].copy()
            engine.microbatch_end()
            engine.close()
            return value

        for value in host.run_ranks(LIBRARY, 2, body):
            np.testing.assert_array_equal(value, gpt.initial()[last][1])

    def test_processes(self):
        for gather in GATHER:
            with self.subTest(gather=gather):
                self.compare(run_processes(2, gather), 2)


def run_processes(ranks, gather):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    secret = secrets.token_hex(16)
    children = [subprocess.Popen(
        [sys.executable, "-B", os.path.abspath(__file__), LIBRARY_PATH,
         "--rank", str(rank), str(ranks), address, secret, gather],
        stdout=subprocess.PIPE, text=True) for rank in range(ranks)]
    try:
        texts = [c.communicate(timeout=2 * host.TIMEOUT_S)[0] for c in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for child in children:
        assert child.returncode == 0, child.args
    return [(r["losses"], [[np.array(p) for p in unit] for unit in r["weights"]])
            for r in map(json.loads, texts)]


def rank_main(rank, size, address, secret, gather):
    world = host.World(
        LIBRARY, bootstrap=_ffi.ALQ_BOOTSTRAP_STORE, rank=int(rank),
        world_size=int(size), store_address=address.encode(),
        store_secret=secret.encode())
    losses, weights = in_engine(world, "fsdp", gather=GATHER[gather])
    world.close()
    world.release()
    print(json.dumps({"losses": losses, "weights": [
        [p.tolist() for p in unit] for unit in weights]}))


if __name__ == "__main__":
    if sys.argv[2:3] == ["--rank"]:
        rank_main(*sys.argv[3:])
    else:
        unittest.main(argv=sys.argv[:1] + sys.argv[2:])

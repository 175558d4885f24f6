"""What autograd really calls, in which order: seven sequences, and that the
engine gives each its gradients.  F R B begin a pass of a unit, ) ends F or R,
] ends B, g is a final gradient.

Usage: autograd_test.py LIBRARY [unittest options]
"""

import copy
import sys
import unittest

import host
import numpy as np
import torch
from host import _ffi
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_adapter import Adapter

LIBRARY = host.Library(sys.argv[1])
RANKS, STEPS, WIDTH, LR = 2, 4, 6, 0.02
FORWARD = "F0 )0 F1 )1 F2 )2"
torch.set_num_threads(1)


def layers(frozen=()):
    torch.manual_seed(3)
    net = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
                        for _ in range(3))
    for i in frozen:
        net[i].requires_grad_(False)
    return net


def data(rank, step):
    rng = np.random.default_rng([rank, step])
    return torch.from_numpy(rng.normal(size=(4, WIDTH)))


def chain(net, x):
    for layer in net:
        x = layer(torch.tanh(x))
    return x


def each(net, x, reentrant):
    x.requires_grad_(reentrant)  # or a reentrant backward sees no need
    for layer in net:
        x = torch.tanh(checkpoint(layer, x, use_reentrant=reentrant,
                                  preserve_rng_state=False))
    return x


def over_three(net, x, last=torch.nn.Identity()):
    return checkpoint(lambda y: last(chain(net, y)), x, use_reentrant=False,
                      preserve_rng_state=False)


def twice(net, x):
    return chain(net, x) + chain(net, 0.5 * x)


def unused(net, x):
    y = chain(net, x)
    net[0](x)
    return y


class Sequences(unittest.TestCase):
    def plain(self, forward, frozen):
        """Losses [step][rank] without the engine."""
        net, losses = layers(frozen), []
        trained = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=LR, betas=(host.ADAMW["beta1"], host.ADAMW["beta2"]),
            eps=host.ADAMW["eps"], weight_decay=0)
        for step in range(STEPS):
            losses.append([])
            for rank in range(RANKS):
                loss = forward(net, data(rank, step)).square().mean()
                loss.backward()
                losses[-1].append(loss.item())
            for p in trained:
                p.grad /= RANKS
            optimizer.step()
            optimizer.zero_grad()
        return losses

    def in_engine(self, world, net, forward, plan):
        units = [("layer%d" % i, m, False) for i, m in enumerate(net)]
        adapter, losses = Adapter(world, units, **plan), []
        for step in range(STEPS):
            scale = adapter.begin(_ffi.ALQ_TRAIN)
            loss = forward(net, data(world.rank, step)).square().mean()
            (loss * scale).backward()
            adapter.engine.microbatch_end()
            adapter.engine.step(LR)
            losses.append(loss.item())
        adapter.engine.close()
        return losses, " ".join(adapter.log)

    def check(self, forward, expect, frozen=(), max_open=1):
        losses = self.plain(forward, frozen)
        net = layers(frozen)
        for gather in (_ffi.ALQ_GATHER_COPY, _ffi.ALQ_GATHER_MAP):
            plan = dict(gather=gather, max_open=max_open)
            results = host.run_ranks(LIBRARY, RANKS, lambda world:
                                     self.in_engine(world, copy.deepcopy(net),
                                                    forward, plan))
            for rank, (mine, log) in enumerate(results):
                self.assertEqual(log, expect)
                np.testing.assert_allclose(
                    mine, [step[rank] for step in losses], rtol=1e-13)

    def refused(self, forward, message):
        net = layers()
        with self.assertRaisesRegex(AssertionError, message):
            host.run_ranks(LIBRARY, RANKS, lambda world: self.in_engine(
                world, copy.deepcopy(net), forward,
                dict(gather=_ffi.ALQ_GATHER_COPY, max_open=1)))

    def test_plain(self):
        self.check(chain, FORWARD + " B2 g2 g2 B1 g1 g1 B0 g0 g0")

    def test_checkpoint(self):
        """The recompute begins inside backward and never ends."""
        self.check(lambda net, x: each(net, x, False), FORWARD +
                   " B2 R2 g2 g2 B1 R1 g1 g1 B0 R0 g0 g0")

    def test_reentrant_checkpoint(self):
        """The recompute comes before the unit's backward."""
        self.check(lambda net, x: each(net, x, True), FORWARD +
                   " R2 )2 B2 g2 g2 R1 )1 B1 g1 g1 R0 )0 B0 g0 g0")

    def test_checkpoint_over_three_units(self):
        self.check(over_three, FORWARD +
                   " B2 R0 )0 R1 )1 R2 g2 g2 B1 g1 g1 B0 g0 g0", max_open=2)
        self.refused(over_three, "larger max_open")
        # Something after the last unit needs the recompute first.
        self.check(lambda net, x: over_three(net, x, torch.tanh), FORWARD +
                   " R0 )0 R1 )1 R2 )2 B2 g2 g2 B1 g1 g1 B0 g0 g0")

    def test_two_forwards_one_backward(self):
        """Backward of a unit comes twice, its gradients once."""
        self.check(twice, FORWARD + " " + FORWARD +
                   " B2 B1 B0 B2 g2 g2 B1 g1 g1 B0 g0 g0", max_open=3)
        self.refused(twice, "larger max_open")

    def test_frozen_around_trainable(self):
        """Unit 2 has no gradient, unit 0 no backward at all."""
        self.check(chain, FORWARD + " B2 ]2 B1 g1 g1", frozen=(0, 2))

    def test_output_not_used(self):
        self.check(unused, FORWARD + " F0 )0 B2 g2 g2 B1 g1 g1 B0 g0 g0")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])

"""Survivors that go on: a smaller group, and everything built on it."""

import os
import signal
import time
import unittest

import numpy as np

import ranks
from ranks import aliquot


def survivors():
    """Rank 1 dies; the others shrink the world and go on with all of it."""
    context = aliquot.open(timeout=20)
    world = context.world
    total = world.all_reduce(np.full(1000, 1.0 + context.rank))
    assert total[0] == 10, total[0]
    try:
        world.barrier()  # everybody has its total before anybody dies
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            world.all_reduce(np.ones(10))
    except aliquot.PeerFailed as error:
        assert error.rank == 1 and "last seen" in error.message, error
    begun = time.monotonic()
    smaller = world.shrink(10)
    assert time.monotonic() - begun < 5
    assert smaller.ranks == [0, 2, 3], smaller.ranks
    assert context.world.ranks == smaller.ranks
    total = smaller.all_reduce(np.full(200_000, 1.0 + context.rank))
    assert total[0] == total[-1] == 8, total[0]
    part = context.mesh("dp_shard=3").group("dp_shard")
    assert part.ranks == [0, 2, 3] and part.rank == smaller.rank
    assert part.all_gather(np.array([context.rank])).ravel().tolist() == \
        [0, 2, 3]
    try:
        world.barrier()
    except aliquot.GroupPoisoned as error:
        assert error.rank == 1, error
    else:
        raise AssertionError("the old group works")
    context.close()
    print("passed")


class Shrink(unittest.TestCase):
    def test_a_killed_rank_is_left_behind(self):
        with ranks.Processes(4, "survivors") as world:
            status, text = zip(*world.outcomes())
        self.assertEqual(status, (0, -signal.SIGKILL, 0, 0), "\n".join(text))

    def test_ranks_that_disagreed_go_on(self):
        def body(context):
            group = context.world.split(0, name="pair")
            with self.assertRaises(aliquot.RankMismatch):
                group.all_reduce(np.ones(3 + context.rank))
            with self.assertRaises(aliquot.FailedPrecondition):
                context.world.shrink()
            again = group.shrink()
            return again.all_reduce(np.full(4, context.rank + 1.0)).tolist()

        self.assertEqual(ranks.run_threads(2, body), [[3.0] * 4] * 2)


if __name__ == "__main__":
    ranks.main(globals())

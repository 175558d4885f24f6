"""A rank that is a thread of the others' process releases all it has in the
middle of a step: nobody reads memory that is gone.  And groups that fail
together are let go of with the engines that used them."""

import os
import random
import sys
import time
import unittest

import host
from host import _ffi
from placement_model import Trained

LIVES, CYCLES = 200, 25
FSDP, HSDP = _ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_HSDP


class Leaves(Exception):
    pass


class Leave(unittest.TestCase):
    def life(self, world, draw):
        """Trains until some call at which one rank leaves."""
        model = Trained(world, "f32", dict(
            strategy=FSDP, gather=_ffi.ALQ_GATHER_COPY), {}, tied=False)
        place, leaver = draw.randint(5, 30), draw.randrange(3)
        late, call, made = draw.random() * 0.002, model.engine.call, []

        def counted(name, *args):
            made.append(name)
            if world.rank == leaver and len(made) == place:
                raise Leaves
            return call(name, *args)

        model.engine.call = counted
        if world.rank != leaver:
            time.sleep(late)
        told = ""
        try:
            for step in range(3):
                model.microbatch(step, world.rank, True)
                model.engine.step(0.01, 0.1)
        except Leaves:
            told = "leaves"
        except host.Refused as refused:
            told = str(refused)
        world.library.c.alq_engine_release(model.engine.handle)
        world.release()
        world.close = world.release = lambda: None
        return leaver, told

    def test_in_the_middle_of_a_step(self):
        for seed in range(LIVES):
            results = host.run_ranks(
                LIBRARY, 3, lambda w: self.life(w, random.Random(seed)))
            for rank, (leaver, told) in enumerate(results):
                self.assertTrue(told, f"seed {seed}: rank {rank} ended well")
                self.assertEqual(rank == leaver, told == "leaves",
                                 f"seed {seed}")

    def test_followers_do_not_pile_up(self):
        """One engine's gathers are another's replicas, made anew each time."""
        def train(world, model):
            model.microbatch(0, world.rank, True)
            model.engine.step(0.01, 0.1)

        def rank_main(world):
            stays = Trained(world, "f32", dict(strategy=FSDP), {}, tied=False)
            opened = []
            for _ in range(CYCLES):
                stays.engine.call("alq_engine_abandon", 0)
                other = Trained(world, "f32", dict(strategy=HSDP), {},
                                tied=False)
                train(world, other)
                other.engine.close()
                train(world, stays)
                opened.append(len(os.listdir("/proc/self/fd")))
            stays.engine.close()
            return opened

        for opened in host.run_ranks(LIBRARY, 2, rank_main,
                                     mesh="dp_replicate=2"):
            self.assertLess(opened[-1], opened[4] + 8, opened)


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

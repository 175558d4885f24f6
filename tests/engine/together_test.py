"""Ranks of one host update together what each has whole: the bits are those of
separate updates, parameters stay each rank's own, states are one.

Usage: together_test.py LIBRARY [unittest options]
"""

import ctypes
import sys
import time
import unittest

import host
from host import _ffi
from placement_model import DTYPES, PARAMS, Layout, Trained, train

DDP, FSDP = _ffi.ALQ_STRATEGY_DDP, _ffi.ALQ_STRATEGY_FSDP
COPY = _ffi.ALQ_GATHER_COPY
VALUE, STATES = _ffi.ALQ_VALUE, (_ffi.ALQ_STATE_0, _ffi.ALQ_STATE_1)
TOGETHER, ALONE = dict(strategy=DDP), dict(strategy=DDP, gather=COPY)
LARGE = next(i for i, p in enumerate(PARAMS) if p[0] == "c")


def view(model, param, what):
    out = host.make(_ffi.alq_shard)
    model.engine.call("alq_shard_view", param, what, ctypes.byref(out))
    return out


def floats(shard):
    assert shard.dtype == _ffi.ALQ_F32
    return (ctypes.c_float * shard.count).from_address(shard.data)


def step(model, rank, number=0):
    model.microbatch(number, rank, True)
    return model.engine.step(0.01, 0.1, clip=0.5)


class Together(unittest.TestCase):
    def on_ranks(self, ranks, body, mesh=""):
        return host.run_ranks(LIBRARY, ranks, body, mesh=mesh)

    def test_the_bits_are_those_of_separate_updates(self):
        for dtype in DTYPES:
            for ranks in (2, 3, 4):
                layout = Layout(ranks, 1, 1, True)
                plans = [TOGETHER, ALONE]
                a, b = [self.on_ranks(ranks, lambda world, plan=plan: train(
                    world, dtype, plan, {}, layout)) for plan in plans]
                with self.subTest(dtype=dtype, ranks=ranks):
                    self.assertEqual(a, b)
                    self.assertEqual(len(set(map(str, a))), 1)

    def test_replicas_and_mixtures(self):
        """Whole units among sharded ones, over two axes."""
        layout = Layout(2, 2, 1, True)
        places = {0: (0, 0, 0), 2: (0, 0, 0), 3: (0, 0, 0)}
        hashes = set()
        for gather in (0, COPY):
            results = self.on_ranks(4, lambda world, gather=gather: train(
                world, "f32", dict(strategy=_ffi.ALQ_STRATEGY_HSDP,
                                   gather=gather), places, layout),
                "dp_replicate=2,dp_shard=2")
            hashes.update(map(str, results))
        self.assertEqual(len(hashes), 1)

    def test_states_exist_once_and_masters_per_rank(self):
        def body(world):
            model = Trained(world, "bf16", TOGETHER, {})
            step(model, world.rank)
            master = view(model, LARGE, VALUE)
            states = [view(model, LARGE, what) for what in STATES]
            whole = {s.count for s in (master, *states)}
            flags = [s.flags for s in (master, *states)]
            out = (whole, flags, [bytes(floats(s)) for s in states],
                   model.planned.state_bytes, model.planned.total_bytes)
            model.engine.close()
            return out

        def separate(world):
            model = Trained(world, "bf16", ALONE, {})
            step(model, world.rank)
            out = (view(model, LARGE, STATES[0]).flags,
                   [bytes(floats(view(model, LARGE, s))) for s in STATES],
                   model.planned.state_bytes, model.planned.total_bytes)
            model.engine.close()
            return out

        one, two = self.on_ranks(2, body)
        flags, states, bytes_alone, total_alone = self.on_ranks(2, separate)[0]
        self.assertEqual(one[0], {67 * 71})
        self.assertEqual(one[1], [0, _ffi.ALQ_SHARD_COMMON,
                                  _ffi.ALQ_SHARD_COMMON])
        self.assertEqual(one[2], two[2])
        self.assertEqual((flags, states), (0, one[2]))
        self.assertEqual(one[3] * 2, bytes_alone)
        self.assertLess(one[4], total_alone)

    def test_a_change_in_place_is_each_ranks_own(self):
        """Doubled on every rank is doubled, not doubled twice."""
        def body(world):
            model = Trained(world, "f32", TOGETHER, {})
            step(model, world.rank)
            mine = floats(view(model, LARGE, VALUE))
            before = list(mine)
            for i, value in enumerate(before):
                mine[i] = 2 * value
            model.engine.call("alq_param_touch")
            right = [2 * value for value in before] == list(mine)
            step(model, world.rank, 1)
            out = right, model.read(VALUE)
            model.engine.close()
            return out

        results = self.on_ranks(3, body)
        self.assertTrue(all(right for right, _ in results))
        self.assertEqual(len({values for _, values in results}), 1)

    def test_one_rank_reads_states_alone(self):
        def body(world):
            model = Trained(world, "f32", TOGETHER, {})
            step(model, world.rank)
            out = model.read(STATES[1]) if world.rank == 1 else None
            step(model, world.rank, 1)
            model.engine.close()
            return out

        self.assertGreater(len(self.on_ranks(2, body)[1]), 4 * 67 * 71)

    def test_written_states_are_not_seen_by_who_still_reads(self):
        """The slow rank reads what it trained, not what the others load."""
        def body(world):
            model = Trained(world, "f32", TOGETHER, {})
            step(model, world.rank)
            count = model.counts[LARGE]
            if world.rank == 0:
                time.sleep(0.2)
            seen = bytes(floats(view(model, LARGE, STATES[0])))
            model.engine.call("alq_param_write", LARGE, STATES[0],
                              bytes(4 * count), 0, count, 0)
            empty = bytes(floats(view(model, LARGE, STATES[0])))
            model.engine.close()
            return seen, empty == bytes(4 * count)

        results = self.on_ranks(3, body)
        self.assertEqual(len({seen for seen, _ in results}), 1)
        self.assertTrue(all(empty for _, empty in results))
        self.assertNotEqual(results[0][0].strip(b"\0"), b"")

    def test_an_outside_optimizer_changes_its_own_copy_only(self):
        """Without an optimizer of the engine nothing is common."""
        def body(world):
            engine = host.Engine(world)
            param = engine.add_param("w", [4096], True, _ffi.ALQ_F32)
            engine.add_unit("u", [param])
            none = host.make(_ffi.alq_optimizer_desc,
                             kind=_ffi.ALQ_OPTIM_NONE)
            engine.call("alq_optimizer_set", 0, ctypes.byref(none))
            engine.call("alq_engine_plan", ctypes.byref(
                host.make(_ffi.alq_plan_desc, **TOGETHER)), None)
            text = ctypes.create_string_buffer(1 << 14)
            engine.call("alq_engine_plan_text", 0, text, len(text), None)
            engine.close()
            return text.value.decode()

        for text in self.on_ranks(2, body):
            self.assertNotIn("common", text)

    def test_a_rank_that_is_lost_in_the_update(self):
        """The others are told, soon, and that parameters may be torn."""
        def body(world):
            model = Trained(world, "f32", TOGETHER, {})
            step(model, world.rank)
            if world.rank == 1:
                world.library.call("alq_fault_set", world.ctx,
                                   b"engine.updated=error")
            begin = time.monotonic()
            with self.assertRaises(host.Refused) as caught:
                step(model, world.rank, 1)
            failed.append((world.rank, caught.exception,
                           time.monotonic() - begin))
            model.engine.c.alq_engine_release(model.engine.handle)
            world.close = lambda: None  # leaves without a word

        failed = []
        self.on_ranks(3, body)
        self.assertEqual(len(failed), 3)
        for rank, error, seconds in failed:
            with self.subTest(rank=rank):
                self.assertLess(seconds, 10)
                if rank == 1:
                    continue
                self.assertEqual(error.code, _ffi.ALQ_PEER_FAILED)
                self.assertIn("load a checkpoint", str(error))
                self.assertIn("rank 1 left", str(error))


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv[1])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])

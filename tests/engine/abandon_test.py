"""An exception on one rank at every position of a step: abandon returns on all
ranks, and what follows has the bits of a run that never saw the batch."""

import ctypes
import sys
import threading
import time
import unittest

import host
from host import _ffi
from replan_test import PLANS, Model
from robustness_test import refusal

F, R, B = _ffi.ALQ_PASS_F, _ffi.ALQ_PASS_R, _ffi.ALQ_PASS_B
LEFT = {_ffi.ALQ_ABORTED, _ffi.ALQ_GROUP_POISONED}
# Recorded from real autograds (docs/design.md): unit, pass, or "g" unit.
SEQUENCES = {
    "plain": "F0 )0 F1 )1 F2 )2 B2 g2 B1 g1 B0 g0",
    "checkpoint": "F0 )0 F1 )1 F2 )2 B2 R2 g2 B1 R1 g1 B0 R0 g0",
    "reentrant": "F0 )0 F1 )1 F2 )2 R2 r2 B2 g2 R1 r1 B1 g1 R0 r0 B0 g0",
}


class BadBatch(Exception):
    pass


def calls_of(model, sequence, step):
    """The calls of one step, each a function."""
    engine, units = model.engine, model.units

    def begin(unit, kind):
        def call():
            view = engine.begin(units[unit], kind)
            if kind == B:
                for i, member in enumerate(model.members[unit]):
                    model.fill(view.grads[i], member, step, 8)
        return call

    yield lambda: engine.microbatch(_ffi.ALQ_TRAIN)
    for word in sequence.split():
        kind, unit = word[0], int(word[1])
        if kind in "FRB":
            yield begin(unit, {"F": F, "R": R, "B": B}[kind])
        elif kind in ")r":
            yield lambda u=unit, k=kind: engine.end(units[u],
                                                    F if k == ")" else R)
        else:
            for member in model.members[unit]:
                # Frozen, or used by a unit that comes later in backward.
                if member != 1 and not (member == 0 and unit == 2):
                    yield lambda p=member: engine.ready(model.params[p])
    yield engine.microbatch_end
    yield lambda: engine.step(0.01, weight_decay=0.1, clip=1.0)


def count_calls(sequence):
    class Nothing:
        engine, units, members = None, [0, 1, 2], [[0, 1], [2, 3], [4, 0]]
    Nothing.engine = type("E", (), {"microbatch_end": None})
    return sum(1 for _ in calls_of(Nothing, sequence, 0))


def leave(world, model, sequence, position, bad_rank):
    """One step in which bad_rank raises before call `position`; the others go
    on until a call says that it left."""
    codes = []
    try:
        for i, call in enumerate(calls_of(model, sequence, 99)):
            if world.rank == bad_rank and i == position:
                raise BadBatch
            call()
    except BadBatch:
        pass
    except host.Refused as refused:
        codes.append(refused.code)
        if f"rank {bad_rank} left" not in str(refused):
            raise
    model.engine.call("alq_engine_abandon", 20 * 10**9)
    return codes


class Abandon(unittest.TestCase):
    def good(self, ranks, plan, sequence, mesh=b""):
        def rank_main(world):
            model = Model(world, plan)
            for step in range(2):
                for call in calls_of(model, sequence, step):
                    call()
            values = model.values()
            model.engine.close()
            return values
        return host.run_ranks(LIBRARY, ranks, rank_main)

    def test_an_exception_at_every_position(self):
        for name, plan in PLANS.items():
            if plan.get("max_open") == 2 or name == "slab":
                continue
            for title, sequence in SEQUENCES.items():
                self.every_position(2, plan, sequence, f"{name} {title}")

    def test_four_ranks(self):
        for name in ("fsdp copy", "zero1"):
            self.every_position(4, PLANS[name], SEQUENCES["checkpoint"], name)

    def every_position(self, ranks, plan, sequence, title):
        want = self.good(ranks, plan, sequence)
        positions = count_calls(sequence)

        def rank_main(world):
            model = Model(world, plan)
            for call in calls_of(model, sequence, 0):
                call()
            longest = 0.0
            for position in range(positions):
                begun = time.monotonic()
                codes = leave(world, model, sequence, position,
                              position % ranks)
                longest = max(longest, time.monotonic() - begun)
                self.assertLessEqual(set(codes), LEFT)
            for call in calls_of(model, sequence, 1):
                call()
            self.assertEqual(model.engine.report()["steps"], 2)
            values = model.values()
            model.engine.close()
            return values, longest

        with self.subTest(plan=title, ranks=ranks):
            results = host.run_ranks(LIBRARY, ranks, rank_main)
            self.assertEqual([values for values, _ in results], want)
            self.assertLess(max(longest for _, longest in results), 15)

    def test_accumulation_is_dropped_whole(self):
        plan = dict(PLANS["zero2"], microbatches=3)

        def rank_main(world, leaves):
            model = Model(world, plan)
            if leaves:
                try:
                    model.gradients(7, last=False)
                    model.gradients(8, last=False)
                    if world.rank == 0:
                        raise BadBatch
                    model.gradients(9)
                    model.engine.step(0.01)
                except (BadBatch, host.Refused):
                    model.engine.call("alq_engine_abandon", 0)
            model.gradients(0, last=False)
            model.gradients(1)
            report = model.engine.step(0.01)
            values = model.values()
            model.engine.close()
            return values, report.weight_sum, report.grad_norm

        self.assertEqual(
            host.run_ranks(LIBRARY, 2, lambda w: rank_main(w, True)),
            host.run_ranks(LIBRARY, 2, lambda w: rank_main(w, False)))

    def test_a_collective_that_fails_is_in_no_step(self):
        """Whichever collective of a step fails on one rank, and however late
        the host hears of it: each rank has taken all of the step or nothing,
        or is told that the ranks differ."""
        for name in ("fsdp copy", "zero1", "zero2", "ddp"):
            want = self.steps_alone(name)
            failed, hit = 0, 0
            while hit < 60 and (hit == 0 or failed):
                hit += 1
                with self.subTest(plan=name, hit=hit):
                    results = host.run_ranks(
                        LIBRARY, 2,
                        lambda w: self.fail_at(w, PLANS[name], hit))
                    failed = sum(refused for refused, _, _ in results)
                    if any(steps is None for _, steps, _ in results):
                        continue  # told to load a checkpoint
                    for _, steps, values in results:
                        self.assertEqual(values, want[steps])
                    self.assertEqual(results[0][1], results[1][1])
            self.assertGreater(hit, 5)

    def steps_alone(self, name):
        """The parameters after no, one and two steps."""
        def rank_main(world):
            model = Model(world, PLANS[name])
            values = [model.values()]
            for step in range(2):
                model.step(step)
                values.append(model.values())
            model.engine.close()
            return values

        return host.run_ranks(LIBRARY, 2, rank_main)[0]

    def fail_at(self, world, plan, hit):
        """Whether a call was refused, and steps and values after leaving."""
        model = Model(world, plan)
        world.library.call("alq_fault_set", world.ctx,
                           b"coll.data:%d@1=error" % hit)
        refused = 0
        try:
            for step in range(2):
                model.step(step)
        except host.Refused:
            refused = 1
        world.library.call("alq_fault_set", world.ctx, None)
        left = refusal(model.engine.call, "alq_engine_abandon", 20 * 10**9)
        if left == _ffi.ALQ_INTERNAL:  # the ranks' steps differ
            world.library.c.alq_engine_release(model.engine.handle)
            return 1, None, None
        self.assertEqual(left, _ffi.ALQ_OK)
        steps, values = model.engine.report()["steps"], model.values()
        model.engine.close()
        return refused, steps, values

    def test_between_steps_alone_and_twice(self):
        def rank_main(world):
            model = Model(world, PLANS["fsdp copy"])
            for _ in range(2):
                model.engine.call("alq_engine_abandon", 0)
            model.step(0)
            model.engine.call("alq_engine_abandon", 0)
            model.step(1)
            model.replan(PLANS["ddp"])  # over the new communicators
            model.step(2)
            values = model.values()
            model.engine.close()
            return values

        def steady(world):
            model = Model(world, PLANS["fsdp copy"])
            for step in range(3):
                model.step(step)
            values = model.values()
            model.engine.close()
            return values

        for ranks in (1, 2):
            self.assertEqual(host.run_ranks(LIBRARY, ranks, rank_main),
                             host.run_ranks(LIBRARY, ranks, steady))

    def test_holds_end(self):
        plan = dict(PLANS["fsdp copy"],
                    phases=_ffi.ALQ_PHASE_TRAIN | _ffi.ALQ_PHASE_HOLD_ALL)

        def rank_main(world):
            model = Model(world, plan)
            model.engine.call("alq_unit_hold", _ffi.ALQ_UNIT_ALL)
            model.engine.call("alq_engine_abandon", 0)
            model.step(0)  # a held unit would refuse it
            model.engine.close()
            return True

        self.assertEqual(host.run_ranks(LIBRARY, 2, rank_main), [True, True])

    def test_a_disagreement_can_be_left_too(self):
        def rank_main(world):
            model = Model(world, PLANS["fsdp copy"])
            model.gradients(0)
            code = refusal(model.engine.step, 0.1 * (1 + world.rank))
            model.engine.call("alq_engine_abandon", 0)
            model.step(1)
            values = model.values()
            model.engine.close()
            return code, values

        results = host.run_ranks(LIBRARY, 2, rank_main)
        self.assertEqual([c for c, _ in results],
                         [_ffi.ALQ_RANK_MISMATCH] * 2)
        self.assertEqual(results[0][1], results[1][1])

    def test_who_does_not_come_is_named(self):
        def rank_main(world):
            model = Model(world, PLANS["fsdp copy"])
            code, text = _ffi.ALQ_OK, ""
            if world.rank == 0:
                try:
                    model.engine.call("alq_engine_abandon", 300 * 10**6)
                except host.Refused as refused:
                    code, text = refused.code, str(refused)
                done.set()
            else:
                done.wait(30)
            world.library.c.alq_engine_release(model.engine.handle)
            world.close = lambda: None
            return code, text

        done = threading.Event()
        code, text = host.run_ranks(LIBRARY, 2, rank_main)[0]
        self.assertEqual(code, _ffi.ALQ_DEADLINE_EXCEEDED)
        self.assertIn("1", text)

    def test_bad_calls(self):
        def rank_main(world):
            engine = host.Engine(world)
            before = refusal(engine.call, "alq_engine_abandon", 0)
            negative = refusal(engine.call, "alq_engine_abandon", -1)
            model = Model(world, PLANS["ddp"])
            model.engine.call("alq_engine_close", 0)
            after = refusal(model.engine.call, "alq_engine_abandon", 0)
            return before, negative, after

        self.assertEqual(
            host.run_ranks(LIBRARY, 1, rank_main),
            [(_ffi.ALQ_FAILED_PRECONDITION, _ffi.ALQ_INVALID_ARGUMENT,
              _ffi.ALQ_FAILED_PRECONDITION)])


if __name__ == "__main__":
    LIBRARY = host.Library(sys.argv.pop(1))
    unittest.main()

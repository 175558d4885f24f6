"""Join when something goes wrong: ranks that go different ways, exceptions,
deadlines, ends.  An error on every rank, soon, that says who and what; and where
all are alive, abandon and then the right bits.

Usage: join_fault_test.py LIBRARY [unittest options]
"""

import ctypes
import json
import os
import signal
import sys
import time
import unittest

import host
from host import _ffi
from join_model import (DDP, EACH, EVAL, ONE_AXIS, PARAMS, TRAIN, Case, Model,
                        Ragged)
from robustness_test import refusal


class Disagreements(Case):
    """Found before any data moves, and told on every rank."""

    def outcome(self, body, ranks=3, name="fsdp copy", **place):
        """body(model) on each rank; the errors, after which abandon and a
        whole step go well."""
        ragged = Ragged((1,) * ranks, False)

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS[name], microbatches=3))
            model.engine.call("alq_param_touch")
            begun, error = time.monotonic(), None
            try:
                body(model)
            except host.Refused as refused:
                error = refused
            seconds = time.monotonic() - begun
            model.engine.call("alq_engine_abandon", 20 * 10**9)
            model.start()
            ragged.run(model)
            bits = model.bits()
            model.engine.close()
            return error, seconds, bits

        errors = []
        for error, seconds, bits in self.on_ranks(ranks, rank_main, **place):
            self.assertIsNotNone(error)
            self.assertLess(seconds, 15)
            self.assertEqual(bits, self.alone([ragged])[1])
            errors.append(error)
        return errors

    def check(self, code, texts, body, **place):
        errors = self.outcome(body, **place)
        codes = {error.code for error in errors}
        self.assertIn(code, codes)
        self.assertLessEqual(codes, {code, _ffi.ALQ_ABORTED,
                                     _ffi.ALQ_GROUP_POISONED})
        for error in errors:
            for text in texts:
                self.assertIn(text, str(error))

    def test_another_unit(self):
        def body(model):
            if model.world.rank == 1:
                return model.join()
            model.engine.microbatch(TRAIN)
            model.engine.begin(1 if model.world.rank == 0 else 2, 1)
            model.engine.microbatch_end()
            return model.step()

        self.check(_ffi.ALQ_RANK_MISMATCH,
                   ["rank 0 called unit_begin of unit 1 (u1), pass F",
                    "rank 2 unit_begin of unit 2 (u2)"], body)

    def test_other_microbatches(self):
        for mine, text in (((EVAL, 1.0, False), "EVAL"),
                           ((TRAIN, 1.0, False), "TRAIN)")):
            def body(model):
                if model.world.rank == 1:
                    return model.join()
                model.engine.microbatch(*(mine if model.world.rank == 2
                                          else (TRAIN, 1.0, True)))
                model.engine.microbatch_end()
                return model.bits()

            with self.subTest(text):
                self.check(_ffi.ALQ_RANK_MISMATCH,
                           ["microbatch_begin(TRAIN, last)", "rank 2", text],
                           body, name="zero1")

    def test_a_last_microbatch_that_was_not(self):
        def body(model):
            model.microbatch(model.world.rank, model.world.rank == 1)
            if model.world.rank == 1:
                return model.join()
            model.microbatch(5, True)
            return model.step()

        self.check(_ffi.ALQ_FAILED_PRECONDITION,
                   ["the last microbatch was begun already"], body,
                   name="zero2")

    def test_leaving_alone(self):
        def body(model):
            rank = model.world.rank
            if rank != 0:
                return model.join("alq_join_leave" if rank == 2 else
                                  "alq_join_enter")
            model.microbatch(0, True)
            return model.step()

        self.check(_ffi.ALQ_RANK_MISMATCH,
                   ["rank 2 called join_leave",
                    "rank 0 microbatch_begin(TRAIN, last)"], body)

    def test_calls_that_cannot_be_served(self):
        data = bytes(4 * PARAMS[0][1])

        def plan(model):
            model.engine.call("alq_engine_plan", ctypes.byref(host.make(
                _ffi.alq_plan_desc, strategy=DDP)), None)

        for text, call in (
                ("param_write", lambda m: m.engine.write(0, data, len(data) //
                                                         4)),
                ("unit_hold", lambda m: m.engine.call("alq_unit_hold", 1)),
                ("engine_plan", plan),
                ("engine_trace_write", lambda m: m.engine.call(
                    "alq_engine_trace_write", b"/nowhere", -1)),
                ("engine_close", lambda m: m.engine.call("alq_engine_close",
                                                         0))):
            def body(model):
                if model.world.rank == 1:
                    model.join()
                else:
                    call(model)
                    model.microbatch(0, True)

            with self.subTest(text):
                self.check(_ffi.ALQ_FAILED_PRECONDITION,
                           [f"rank 0 called {text} while rank 1 is in join"],
                           body)

    def test_nobody_calls_anything(self):
        """The deadline, on a rank that waits in join; the others hear of it."""
        def body(model):
            if model.world.rank == 1:
                return model.join()
            time.sleep(1.0)
            model.microbatch(0, True)
            return model.step()

        errors = self.outcome(body, timeout_ns=400 * 10**6)
        self.assertEqual(errors[1].code, _ffi.ALQ_DEADLINE_EXCEEDED)
        self.assertIn("rank 0", str(errors[1]))

    def test_refused_at_once(self):
        def rank_main(world):
            model = Model(world, dict(
                ONE_AXIS["fsdp copy"], phases=_ffi.ALQ_PHASE_TRAIN |
                _ffi.ALQ_PHASE_HOLD_ALL))
            model.engine.microbatch(TRAIN)
            inside = refusal(model.join)
            model.engine.microbatch_end()
            model.step()
            model.engine.call("alq_unit_hold", _ffi.ALQ_UNIT_ALL)
            held = [refusal(model.join, call) for call in
                    ("alq_join_enter", "alq_join_leave")]
            # Passes of held units are no rank's business.
            for _ in range(world.rank):
                model.evaluate()
            model.engine.call("alq_unit_unhold", _ffi.ALQ_UNIT_ALL)
            left = model.join().left
            model.engine.close()
            return inside, held, left, refusal(model.engine.call,
                                               "alq_join_enter", None)

        self.assertEqual(
            self.on_ranks(3, rank_main),
            [(_ffi.ALQ_FAILED_PRECONDITION,
              [_ffi.ALQ_FAILED_PRECONDITION] * 2, 0,
              _ffi.ALQ_INVALID_ARGUMENT)] * 3)


class BadBatch(Exception):
    pass


def raise_before(engine, number):
    """The call of that number raises instead."""
    call, left = engine.call, [number]

    def counted(name, *args):
        left[0] -= 1
        if left[0] == -1:
            raise BadBatch
        call(name, *args)
    engine.call = counted
    return lambda: number - left[0]


class Faults(Case):
    def test_an_exception_at_every_call_while_others_are_in_join(self):
        step, after = Ragged((2, 0, 1), True), Ragged((0, 2, 1), True)
        for name in ("fsdp copy", "fsdp map", "zero1"):
            with self.subTest(name):
                for bad in (0, 2):
                    self.every_position(name, step, after, bad)

    def every_position(self, name, step, after, bad):
        def calls_made(world):
            model = Model(world, dict(ONE_AXIS[name], defer=EACH,
                                      microbatches=2))
            made = raise_before(model.engine, 10**9)
            step.run(model)
            calls = made()
            model.engine.close()
            return calls

        positions = self.on_ranks(3, calls_made)[bad]

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS[name], defer=EACH,
                                      microbatches=2))
            call, longest, codes = model.engine.call, 0.0, set()
            for position in range(positions):
                if world.rank == bad:
                    raise_before(model.engine, position)
                begun = time.monotonic()
                try:
                    step.run(model)
                except BadBatch:
                    pass
                except host.Refused as refused:
                    codes.add(refused.code)
                    if f"rank {bad} left" not in str(refused):
                        raise
                model.engine.call = call
                model.engine.call("alq_engine_abandon", 20 * 10**9)
                longest = max(longest, time.monotonic() - begun)
            model.start()
            after.run(model)
            bits = model.bits()
            model.engine.close()
            return codes, longest, bits

        for codes, longest, bits in self.on_ranks(3, rank_main):
            self.assertLessEqual(codes, {_ffi.ALQ_ABORTED,
                                         _ffi.ALQ_GROUP_POISONED})
            self.assertLess(longest, 15)
            self.assertEqual(bits, self.alone([after])[1])

    def test_an_error_at_every_followed_call(self):
        """The rank in join fails; the others are told, and all go on."""
        step, after = Ragged((1, 0, 1), True), Ragged((0, 2, 1), True)
        for hit in (1, 2, 3, 7, 12, 16, 17, 18):
            def rank_main(world):
                model = Model(world, dict(ONE_AXIS["fsdp copy"],
                                          microbatches=2))
                world.library.call("alq_fault_set", world.ctx,
                                   b"engine.join:%d@1=error" % hit)
                error = None
                try:
                    step.run(model)
                except host.Refused as refused:
                    error = str(refused)
                world.library.call("alq_fault_set", world.ctx, None)
                model.engine.call("alq_engine_abandon", 0)
                model.start()
                after.run(model)
                bits = model.bits()
                model.engine.close()
                return error, bits

            with self.subTest(hit=hit):
                for error, bits in self.on_ranks(3, rank_main):
                    self.assertIn("engine.join", error)
                    self.assertEqual(bits, self.alone([after])[1])

    def test_a_rank_is_killed(self):
        """Processes; every survivor is told who, soon."""
        for plan in ("fsdp copy", "ddp"):
            for fault in ("engine.join:1@1", "engine.join:9@1",
                          "engine.begin:3@0", "engine.reduce:2@0",
                          "engine.step@0", "engine.step@1", "coll.posted:4@2",
                          "engine.begin:6@2"):
                with self.subTest(plan, fault=fault):
                    killed = int(fault[-1])
                    for rank, told in in_processes(3, plan, fault):
                        if rank == killed:
                            self.assertEqual(told, -signal.SIGKILL)
                            continue
                        code, text, seconds = told
                        self.assertIn(code, (_ffi.ALQ_PEER_FAILED,
                                             _ffi.ALQ_ABORTED,
                                             _ffi.ALQ_GROUP_POISONED))
                        self.assertRegex(
                            text, r"rank %d \(process \d+\) died" % killed)
                        self.assertLess(seconds, 10)


def in_processes(ranks, plan, fault):
    """What each rank of killed() told, or how it ended."""
    ended = host.run_processes(__file__, LIBRARY_PATH, ranks,
                               JOIN_JOB=json.dumps([plan, fault]))
    for rank, (code, out, errors) in enumerate(ended):
        assert code in (0, -signal.SIGKILL), errors
        yield rank, json.loads(out) if out else code


def killed(plan, fault):
    """Rank 1 is in join while the others train; one of them dies."""
    world = host.World(Case.library, timeout_ns=30 * 10**9)
    model = Model(world, dict(ONE_AXIS[plan], microbatches=2))
    step = Ragged((2, 0, 1), False)
    world.library.call("alq_fault_set", world.ctx, f"{fault}=kill".encode())
    begun = time.monotonic()
    try:
        step.run(model)
    except host.Refused as refused:
        print(json.dumps([refused.code, str(refused),
                          time.monotonic() - begun]))
    world.library.c.alq_engine_release(model.engine.handle)
    world.release()


if __name__ == "__main__":
    LIBRARY_PATH = sys.argv.pop(1)
    Case.library = host.Library(LIBRARY_PATH)
    if "JOIN_JOB" in os.environ:
        killed(*json.loads(os.environ["JOIN_JOB"]))
    else:
        unittest.main()

"""Ranks with different numbers of microbatches: with join, the bits of one rank
that has them all; and an error, soon, where ranks go different ways or end.

Usage: join_test.py LIBRARY [unittest options]
"""

import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import unittest

import host
from host import _ffi
from join_model import (COPY, EACH, EVAL, LAST, MAP, MOST, PARAMS, R, S, TRAIN,
                        Model, Ragged, splits)
from robustness_test import refusal

DDP, FSDP, HSDP, CUSTOM = (
    _ffi.ALQ_STRATEGY_DDP, _ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_HSDP,
    _ffi.ALQ_STRATEGY_CUSTOM)
ONE_AXIS = {
    "ddp": dict(strategy=DDP),
    "zero1": dict(strategy=_ffi.ALQ_STRATEGY_ZERO1),
    "zero2": dict(strategy=_ffi.ALQ_STRATEGY_ZERO2),
    "fsdp copy": dict(strategy=FSDP, gather=COPY),
    "fsdp map": dict(strategy=FSDP, gather=MAP),
}
BOTH = S | R
TWO_AXES = {
    "hsdp": (dict(strategy=HSDP), {}),
    "states over both": (dict(strategy=CUSTOM, param_axes=S, grad_axes=S,
                              state_axes=BOTH, gather=COPY), {}),
    "each unit another": (dict(strategy=HSDP),
                          {0: (0, 0, BOTH), 3: (0, 0, BOTH),
                           1: (BOTH, BOTH, BOTH), 2: (S, BOTH, BOTH)}),
}
TIMEOUT_S = 60


class Case(unittest.TestCase):
    def on_ranks(self, ranks, body, mesh="", **place):
        return host.run_ranks(LIBRARY, ranks, body, mesh=mesh, **place)

    def alone(self, steps, push=False, known={}):
        """What one rank has after these steps: reports and bits."""
        key = push, *(s.nesting for s in steps)

        def rank_main(world):
            reports = []
            model = Model(world, steps[0].plan(), push=push)
            for i, step in enumerate(steps):
                if i > 0:
                    model.engine.call("alq_engine_plan", ctypes.byref(
                        host.make(_ffi.alq_plan_desc, **step.plan())), None)
                    model.engine.call("alq_engine_commit", None)
                reports.append(step.alone(model))
            bits = model.bits()
            model.engine.close()
            return reports, bits

        if key not in known:
            known[key], = self.on_ranks(1, rank_main)
        return known[key]


class Bits(Case):
    def check(self, all_steps, plan, places=None, mesh="", push=False):
        """Each element of all_steps: steps of a run, in one world."""
        ranks = len(all_steps[0][0].counts)

        def rank_main(world):
            model = Model(world, dict(plan, microbatches=MOST), places, push)
            out = []
            for steps in all_steps:
                model.start()
                reports = [step.run(model) for step in steps]
                out.append(([r for r in reports if isinstance(r, tuple)],
                            model.bits()))
                for step, report in zip(steps, reports):
                    if not isinstance(report, tuple):
                        served = step.most - step.counts[world.rank]
                        assert (report.microbatches, report.evals,
                                report.steps, report.left) == (served, 0, 1, 0)
            model.engine.close()
            return out

        results = self.on_ranks(ranks, rank_main, mesh)
        for i, steps in enumerate(all_steps):
            reports, bits = self.alone(steps, push)
            for rank in range(ranks):
                with self.subTest(counts=[s.counts for s in steps], rank=rank):
                    mine = [r for r, s in zip(reports, steps)
                            if s.counts[rank] == s.most]
                    self.assertEqual(results[rank][i], (mine, bits))

    def test_every_split_of_7_over_3_ranks(self):
        for name, plan in ONE_AXIS.items():
            for defer in (EACH, LAST):
                with self.subTest(name, defer=defer):
                    self.check([[Ragged(counts, defer == EACH)]
                                for counts in splits(7, 3)],
                               dict(plan, defer=defer))

    def test_every_split_over_replicas_and_mixtures(self):
        for each in (True, False):
            defer = EACH if each else LAST
            every = splits(7, 3)
            with self.subTest("hsdp", defer=defer):
                self.check([[Ragged(c, each, 1)] for c in every],
                           dict(strategy=HSDP, defer=defer), None,
                           "dp_replicate=3,dp_shard=1")
            with self.subTest("units placed apart", defer=defer):
                self.check([[Ragged(c, each)] for c in every],
                           dict(strategy=FSDP, defer=defer, prefetch=2),
                           {0: (0, 0, 0), 3: (0, 0, 0), 1: (0, S, S)})

    def test_two_axes_over_4_ranks(self):
        some = [c for i, c in enumerate(splits(7, 4)) if i % 9 == 0]
        for name, (plan, places) in TWO_AXES.items():
            for each in (True, False):
                with self.subTest(name, each=each):
                    self.check([[Ragged(c, each, 2)] for c in some],
                               dict(plan, defer=EACH if each else LAST),
                               places, "dp_replicate=2,dp_shard=2")

    def test_the_default_deferral_and_pushed_gradients(self):
        some = splits(5, 3)[::3]
        for name, each in (("ddp", False), ("zero1", False), ("zero2", True),
                           ("fsdp copy", True), ("fsdp map", True)):
            for push in (False, True):
                with self.subTest(name, push=push):
                    plan = dict(ONE_AXIS[name], max_open=2 * push)
                    self.check([[Ragged(c, each)] for c in some], plan,
                               push=push)

    def test_ragged_over_several_steps(self):
        runs = [[(3, 2, 2), (1, 3, 2), (2, 2, 2), (0, 0, 4)],
                [(0, 1, 0), (1, 0, 0), (0, 0, 1)]]
        for name, plan in ONE_AXIS.items():
            for defer in (EACH, LAST):
                with self.subTest(name, defer=defer):
                    self.check([[Ragged(c, defer == EACH) for c in run]
                                for run in runs], dict(plan, defer=defer))


class Sequences(Case):
    def test_ranks_with_different_numbers_of_steps(self):
        """Rank r takes r + 1 steps of two microbatches, with an evaluation
        after each and a read; the others serve."""
        for name, plan in ONE_AXIS.items():
            each = name not in ("ddp", "zero1")
            steps = [Ragged(tuple(2 if r >= s else 0 for r in range(3)), each)
                     for s in range(3)]

            def rank_main(world):
                model = Model(world, dict(plan, microbatches=2))
                seen = []
                for s in range(world.rank + 1):
                    for m in range(2):
                        model.microbatch(steps[s].numbers[world.rank, m],
                                         m == 1)
                    model.step()
                    seen.append((model.evaluate(), model.bits()))
                report = model.join()
                served = (report.microbatches, report.evals, report.steps,
                          report.left)
                after = model.evaluate(), model.bits()
                model.engine.close()
                return seen, served, after

            with self.subTest(name):
                results = self.on_ranks(3, rank_main)
                for rank, (seen, served, after) in enumerate(results):
                    missed = 2 - rank
                    self.assertEqual(served,
                                     (2 * missed, missed, missed, 0))
                    self.assertEqual(seen, results[2][0][:rank + 1])
                    self.assertEqual(after, results[2][0][2])
                    self.assertEqual(after[1], self.alone(steps)[1])

    def test_leave_ends_join_in_the_middle_of_a_step(self):
        """Ranks out of data come back for the step that they all take."""
        ragged = Ragged((3, 1, 2), True)

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["fsdp copy"], microbatches=3))
            for m in range(ragged.counts[world.rank]):
                model.microbatch(ragged.numbers[world.rank, m], m == 2)
            call = "alq_join_leave" if world.rank == 0 else "alq_join_enter"
            report = model.join(call)
            step, bits = model.step(), model.bits()
            model.engine.close()
            return (report.microbatches, report.steps, report.left,
                    report.begun, report.last), step, bits

        reports, bits = self.alone([ragged])
        for rank, result in enumerate(self.on_ranks(3, rank_main)):
            served = 3 - ragged.counts[rank]
            self.assertEqual(result, ((served, 0, 1, 3, 1), reports[0], bits))

    def test_enter_and_leave_without_need(self):
        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["fsdp copy"], microbatches=1))
            left = []
            for i in range(5):
                left.append(model.join("alq_join_enter").left)
                left.append(model.join("alq_join_leave").left)
                model.microbatch(world.rank, True)
                model.step()
            bits = model.bits()
            model.engine.close()
            return left, bits

        for ranks in (1, 3):
            for left, _ in self.on_ranks(ranks, rank_main):
                self.assertEqual(left, [0, 1] * 5)

    def test_nobody_knew_the_last_microbatch(self):
        """All enter, then end the step with a microbatch without passes."""
        ragged = Ragged((2, 0, 3), False)

        def alone(world):
            plan = ragged.plan()
            model = Model(world, dict(plan, microbatches=6,
                                      nesting=b"2+3+1"))
            for number in range(5):
                model.microbatch(number, False)
            return finish(model)

        def finish(model):
            model.engine.microbatch(TRAIN, 0.0, True)
            model.engine.microbatch_end()
            step, bits = model.step(), model.bits()
            model.engine.close()
            return step, bits

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["zero1"], microbatches=4))
            for m in range(ragged.counts[world.rank]):
                model.microbatch(ragged.numbers[world.rank, m], False)
            model.join()
            return finish(model)

        self.assertEqual(self.on_ranks(3, rank_main),
                         self.on_ranks(1, alone) * 3)

    def test_a_bad_gradient_is_skipped_by_all(self):
        for name in ("ddp", "zero2", "fsdp map"):
            for spoil in (0, 3):
                ragged = Ragged((1, 3, 2), False)

                def rank_main(world):
                    model = Model(world, dict(ONE_AXIS[name], defer=LAST,
                                              microbatches=3))
                    before = model.bits()
                    report = ragged.run(model, spoil)
                    values = model.evaluate()
                    steps = model.engine.report()["steps"]
                    model.start()
                    good = ragged.run(model)
                    bits = model.bits()
                    model.engine.close()
                    return report, steps, values, before, good, bits

                with self.subTest(name, spoil=spoil):
                    results = self.on_ranks(3, rank_main)
                    self.assertEqual(results[1][0][2:], (0, 1))
                    self.assertEqual({r[1] for r in results}, {0})
                    self.assertEqual(len({r[2] for r in results}), 1)
                    for result in results:
                        self.assertEqual(result[5], self.alone([ragged])[1])

    def test_a_step_that_all_refuse_is_the_callers_to_handle(self):
        """The followers stay, whatever the caller does next."""
        ragged = Ragged((2, 0, 2), True)

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["fsdp copy"], microbatches=2))
            code = _ffi.ALQ_OK
            if world.rank != 1:
                model.microbatch(0, True)
                code = refusal(model.engine.step, 0.1 * (1 + world.rank))
            report = ragged.run(model)
            bits = model.bits()
            model.engine.close()
            return code, bits, getattr(report, "steps", None)

        results = self.on_ranks(3, rank_main)
        self.assertEqual([r[0] for r in results],
                         [_ffi.ALQ_RANK_MISMATCH, _ffi.ALQ_OK,
                          _ffi.ALQ_RANK_MISMATCH])
        self.assertEqual([r[2] for r in results], [None, 2, None])
        for result in results:
            self.assertEqual(result[1], self.alone([ragged])[1])

    def test_thousands_of_calls_ahead(self):
        """A rank that nothing holds back waits for the slowest when its log is
        full; nothing is lost."""
        count = 300  # of some 25 calls each

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS["ddp"], microbatches=1))
            if world.rank == 1:
                time.sleep(0.3)
            for _ in range(count if world.rank != 2 else 3):
                model.evaluate()
            report = model.join()
            model.engine.close()
            return report.evals

        self.assertEqual(self.on_ranks(3, rank_main), [0, 0, count - 3])


class Disagreements(Case):
    """Found before any data moves, and told on every rank."""

    def outcome(self, body, ranks=3, name="fsdp copy", **place):
        """body(model) on each rank; the errors, after which abandon and a
        whole step go well."""
        ragged = Ragged((1,) * ranks, False)

        def rank_main(world):
            model = Model(world, dict(ONE_AXIS[name], microbatches=3))
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
                return model.step()

            with self.subTest(text):
                self.check(_ffi.ALQ_RANK_MISMATCH,
                           ["microbatch_begin(TRAIN, last)", "rank 2", text],
                           body, name="ddp")

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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    shared = {"ALIQUOT_WORLD_SIZE": str(ranks), "ALIQUOT_STORE": address,
              "ALIQUOT_LOCAL_SIZE": str(ranks),
              "ALIQUOT_SECRET": secrets.token_hex(16),
              "JOIN_JOB": json.dumps([plan, fault])}
    children = [subprocess.Popen(
        [sys.executable, "-B", os.path.abspath(__file__), LIBRARY_PATH],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **shared, "ALIQUOT_RANK": str(rank),
             "ALIQUOT_LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    try:
        texts = [child.communicate(timeout=TIMEOUT_S) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for rank, (child, (out, errors)) in enumerate(zip(children, texts)):
        assert child.returncode in (0, -signal.SIGKILL), errors
        yield rank, json.loads(out) if out else child.returncode


def killed(plan, fault):
    """Rank 1 is in join while the others train; one of them dies."""
    world = host.World(LIBRARY, timeout_ns=30 * 10**9)
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
    LIBRARY = host.Library(LIBRARY_PATH)
    if "JOIN_JOB" in os.environ:
        killed(*json.loads(os.environ["JOIN_JOB"]))
    else:
        unittest.main()

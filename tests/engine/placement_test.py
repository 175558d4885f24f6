"""Placements per unit and per state have the bits of one rank.

Values, optimizer states, gradients and norms after some steps, over threads and
processes.  Usage: placement_test.py LIBRARY [unittest options]
"""

import ctypes
import json
import os
import sys
import unittest

import host
from host import _ffi
from placement_model import DTYPES, PARAMS, Layout, Trained, draw, train

DDP, FSDP, HSDP, CUSTOM = (
    _ffi.ALQ_STRATEGY_DDP, _ffi.ALQ_STRATEGY_FSDP, _ffi.ALQ_STRATEGY_HSDP,
    _ffi.ALQ_STRATEGY_CUSTOM)
EACH, LAST = _ffi.ALQ_DEFER_EACH, _ffi.ALQ_DEFER_LAST
COPY, MAP = _ffi.ALQ_GATHER_COPY, _ffi.ALQ_GATHER_MAP
S, R = _ffi.ALQ_AXIS_DP_SHARD, _ffi.ALQ_AXIS_DP_REPLICATE


def placed(params, grads, states, **plan):
    return dict(strategy=CUSTOM, param_axes=params, grad_axes=grads,
                state_axes=states, **plan)


BOTH = S | R
# Mixtures over one data axis: (strategy, placements of units).
ONE_AXIS = {
    "replicated root": (FSDP, {0: (0, 0, 0), 3: (0, 0, 0)}),
    "zero1 ends": (FSDP, {0: (0, 0, S), 3: (0, 0, S)}),
    "zero2 middle": (FSDP, {1: (0, S, S)}),
    "sharded middle": (DDP, {1: (S, S, S), 2: (0, S, S)}),
}
# And over two: (plan, placements of units).
TWO_AXES = {
    "states over both": (placed(S, S, BOTH), {}),
    "gradients over both": (placed(S, BOTH, BOTH), {}),
    "all over both": (placed(BOTH, BOTH, BOTH), {}),
    "states only": (placed(0, 0, BOTH), {}),
    "gradients over one": (placed(0, S, BOTH), {}),
    "zero1 within replicas": (placed(0, 0, S), {}),
    "replicated root": (dict(strategy=HSDP),
                        {0: (0, 0, 0), 3: (0, 0, 0), 2: (S, S, BOTH)}),
    "each unit another": (dict(strategy=HSDP),
                          {0: (0, 0, BOTH), 3: (0, 0, BOTH),
                           1: (BOTH, BOTH, BOTH), 2: (S, BOTH, BOTH)}),
    "every row": (placed(0, 0, 0),
                  {0: (0, BOTH, BOTH), 3: (0, BOTH, BOTH), 1: (S, S, S),
                   2: (S, S, BOTH)}),
}


class Placements(unittest.TestCase):
    def on_ranks(self, ranks, body, mesh=""):
        return host.run_ranks(LIBRARY, ranks, body, mesh=mesh)

    def alone(self, dtype, layout, tied=True, known={}):
        key = (dtype, layout.nesting, tied)
        if key not in known:
            known[key], = self.on_ranks(1, lambda world: train(
                world, dtype, {}, {}, layout, alone=True, tied=tied))
        return known[key]

    def check(self, dtype, layout, plan, places, mesh="", tied=True):
        ranks = layout.shards * layout.replicas
        results = self.on_ranks(ranks, lambda world: train(
            world, dtype, plan, places, layout, tied=tied), mesh)
        for result in results:
            self.assertEqual(result, self.alone(dtype, layout, tied))

    def test_mixtures_over_one_axis(self):
        for dtype in DTYPES:
            for ranks in (2, 4):
                for microbatches, defer in ((1, 0), (2, EACH), (2, LAST)):
                    layout = Layout(ranks, 1, microbatches, defer == EACH)
                    for name, (strategy, places) in ONE_AXIS.items():
                        gathers = (COPY, MAP) if dtype == "f32" else (COPY,)
                        for gather in gathers:
                            with self.subTest(
                                    name, dtype=dtype, ranks=ranks,
                                    defer=defer, gather=gather):
                                self.check(dtype, layout, dict(
                                    strategy=strategy, gather=gather,
                                    defer=defer), places)

    def two_axes(self, replicas, shards, microbatches, gathers, only=None):
        mesh = f"dp_replicate={replicas},dp_shard={shards}"
        for dtype in DTYPES:
            for count, defer in microbatches:
                layout = Layout(shards, replicas, count, defer == EACH)
                for name, (plan, places) in TWO_AXES.items():
                    if only and name not in only:
                        continue
                    for gather in gathers if dtype == "f32" else gathers[:1]:
                        with self.subTest(name, dtype=dtype, mesh=mesh,
                                          defer=defer, gather=gather):
                            self.check(dtype, layout,
                                       dict(plan, defer=defer, gather=gather),
                                       places, mesh)

    def test_mixtures_over_two_axes(self):
        self.two_axes(2, 2, ((1, 0), (2, EACH), (2, LAST)), (COPY, 0))

    def test_mixtures_over_eight_ranks(self):
        self.two_axes(2, 4, ((2, EACH),), (0,))
        self.two_axes(4, 2, ((1, 0),), (COPY,),
                      ("states over both", "each unit another"))

    def test_an_axis_of_one_rank_does_not_matter(self):
        for replicas, shards in ((4, 1), (1, 4)):
            mesh = f"dp_replicate={replicas},dp_shard={shards}"
            layout = Layout(shards, replicas, 2, True)
            axis = R if shards == 1 else S
            for masks in ((0, 0, axis), (0, axis, axis), (axis, axis, axis),
                          (S, S, BOTH), (BOTH, BOTH, BOTH)):
                with self.subTest(mesh=mesh, masks=masks):
                    self.check("bf16", layout, placed(*masks, defer=EACH),
                               {2: (0, 0, 0)}, mesh)

    def test_units_without_ties_and_prefetch(self):
        mesh, layout = "dp_replicate=2,dp_shard=2", Layout(2, 2, 2, True)
        places = {0: (0, 0, 0), 1: (BOTH, BOTH, BOTH), 2: (S, S, BOTH),
                  3: (0, S, S)}
        for prefetch in (-1, 1, 3):
            with self.subTest(prefetch=prefetch):
                self.check("f32", layout, dict(
                    strategy=HSDP, prefetch=prefetch, defer=EACH), places,
                    mesh, tied=False)

    def test_processes(self):
        for name in ("states over both", "each unit another", "every row"):
            for gather in (COPY, 0):
                layout = Layout(2, 2, 2, True)
                plan, places = TWO_AXES[name]
                plan = dict(plan, gather=gather, defer=EACH)
                with self.subTest(name, gather=gather):
                    for result in in_processes(4, "dp_replicate=2,dp_shard=2",
                                               "f32", plan, places, layout):
                        self.assertEqual(result, self.alone("f32", layout))

    def test_a_slot_waits_for_late_readers(self):
        """Where a shard lies in a slot, peers read it there: one that is late
        must not find the next unit in it."""
        late = ",".join(f"coll.data:{n}@1=delay_ms/10" for n in range(1, 60))

        def rank_main(world):
            model = Trained(world, "f64", placed(BOTH, BOTH, BOTH, prefetch=-1,
                                                 gather=COPY), {}, tied=False)
            world.library.call("alq_fault_set", world.ctx, late.encode())
            wrong = []
            for _ in range(3):
                model.engine.microbatch(_ffi.ALQ_EVAL)
                for u in (1, 2, 3):
                    values = {}
                    model.seen(model.engine.begin(u, _ffi.ALQ_PASS_F_NOGRAD),
                               u, values)
                    model.engine.end(u, _ffi.ALQ_PASS_F_NOGRAD)
                    wrong += [PARAMS[p][0] for p, seen in values.items()
                              if seen != draw(PARAMS[p][0], len(seen))]
                model.engine.microbatch_end()
            world.library.call("alq_fault_set", world.ctx, None)
            model.engine.close()
            return wrong

        self.assertEqual(
            self.on_ranks(4, rank_main, "dp_replicate=2,dp_shard=2"), [[]] * 4)

    @unittest.skipIf(host.ON_CUDA, "units may begin before a failure is known")
    def test_nobody_gets_what_was_assembled_in_part(self):
        """Rank 2 leaves after a step; rank 0 has only its own part of a shard
        then, and rank 1 gathers from rank 0."""
        def trained(world, plan, places):
            model = Trained(world, "f64", plan, places, tied=False)
            model.microbatch(0, world.rank, True)
            model.engine.step(0.01, 0.1)
            return model

        def seen(model):
            values, kind = {}, _ffi.ALQ_PASS_F_NOGRAD
            model.engine.microbatch(_ffi.ALQ_EVAL)
            for u in (1, 2, 3):
                model.seen(model.engine.begin(u, kind), u, values)
                model.engine.end(u, kind)
                yield dict(values)
            model.engine.microbatch_end()

        def rank_main(world, plan, places):
            model = trained(world, plan, places)
            want = list(seen(model))
            model.engine.close()
            model, wrong, told = trained(world, plan, places), [], False
            try:
                if world.rank != 2:
                    for unit, values in enumerate(seen(model)):
                        wrong += [unit] if values != want[unit] else []
            except host.Refused as refused:
                told = "rank 2 left" in str(refused)
            model.engine.call("alq_engine_abandon", 0)
            after = list(seen(model)) == want
            model.engine.close()
            return wrong, told, after

        for name in ("all over both", "states over both", "each unit another"):
            plan, places = TWO_AXES[name]
            plan = dict(plan, gather=COPY)
            with self.subTest(name):
                self.assertEqual(
                    self.on_ranks(4, lambda w: rank_main(w, plan, places),
                                  "dp_replicate=2,dp_shard=2"),
                    [([], rank != 2, True) for rank in range(4)])

    def test_defaults_defer_by_unit(self):
        """Whole gradients wait for the last microbatch, sharded ones do not."""
        def rank_main(world):
            model = Trained(world, "f32", dict(strategy=FSDP, microbatches=2),
                            {0: (0, 0, 0), 3: (0, 0, 0)})
            text = ctypes.create_string_buffer(1 << 16)
            model.engine.call("alq_engine_plan_text", _ffi.ALQ_FORMAT_JSON,
                              text, len(text), None)
            plan = json.loads(text.value)
            model.engine.call("alq_engine_plan_text", _ffi.ALQ_FORMAT_TEXT,
                              text, len(text), None)
            model.engine.close()
            return plan, text.value.decode()

        for plan, text in self.on_ranks(2, rank_main):
            self.assertEqual(plan["reduce"], "each or the last")
            # Root, tied with the last unit, two blocks, and that unit's own.
            for bundle in plan["bundles"]:
                whole = bundle["name"] in ("u0", "u0 (tied)", "u3")
                self.assertEqual(bundle["defer"], whole, bundle)
                self.assertEqual(set(bundle["placement"].values()),
                                 {"whole" if whole else "shard"})
                mapped = "copy" if host.ON_CUDA else "map"
                self.assertEqual(bundle["gather"], "none" if whole else mapped)
            self.assertIn("unit u3: parameters whole", text)

    def test_a_bad_gradient_is_named_whatever_the_placement(self):
        plan, places = TWO_AXES["each unit another"]
        for spoiled in (1, 6, 8):
            def rank_main(world):
                model = Trained(world, "f32", dict(plan, microbatches=2),
                                places)
                before = model.read(_ffi.ALQ_VALUE)
                for m in range(2):
                    bad = spoiled if (world.rank, m) == (2, 1) else None
                    model.microbatch(0, 2 * world.rank + m, m == 1, bad)
                report = model.engine.step(0.01)
                same = model.read(_ffi.ALQ_VALUE) == before
                model.engine.close()
                return (report.skipped, report.bad_param, report.bad_rank,
                        report.bad_microbatch, same)

            with self.subTest(param=PARAMS[spoiled][0]):
                self.assertEqual(
                    self.on_ranks(4, rank_main, "dp_replicate=2,dp_shard=2"),
                    [(1, spoiled, 2, 1, True)] * 4)


def in_processes(ranks, mesh, dtype, plan, places, layout):
    """train() on ranks that are processes of their own."""
    job = json.dumps([mesh, dtype, plan, places, layout.shards,
                      layout.replicas, layout.microbatches, layout.each])
    ended = host.run_processes(__file__, LIBRARY_PATH, ranks,
                               PLACEMENT_JOB=job)
    for code, _, errors in ended:
        assert code == 0, errors
    return [tuple(json.loads(out)) for _, out, _ in ended]


def rank_process(job):
    mesh, dtype, plan, places, *layout = job
    world = host.World(LIBRARY, mesh)
    print(json.dumps(train(world, dtype, plan, places, Layout(*layout))))
    world.close()
    world.release()


if __name__ == "__main__":
    LIBRARY_PATH = sys.argv.pop(1)
    LIBRARY = host.Library(LIBRARY_PATH)
    if "PLACEMENT_JOB" in os.environ:
        rank_process(json.loads(os.environ["PLACEMENT_JOB"]))
    else:
        unittest.main()

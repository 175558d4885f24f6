"""The engine's calls from Python, on NumPy: steps, shards, values, reports."""

import threading
import unittest

import numpy as np
import ranks

import aliquot

SHAPES = [(3, 5), (7,)]


def value(param):
    return np.linspace(-1, 1, int(np.prod(SHAPES[param]))).reshape(
        SHAPES[param]) + param


def gradient(rank, micro, param):
    rng = np.random.default_rng([rank, micro, param])
    return rng.normal(size=SHAPES[param])


def make(context, strategy, **plan):
    engine = aliquot.Engine(context.mesh(), "numpy", poison=True)
    params = [engine.param_add("p%d" % i, shape, "f64", optim_group=i)
              for i, shape in enumerate(SHAPES)]
    unit = engine.unit_add("unit", params)
    engine.optimizer_set(0, "sgd", momentum=0.5)
    engine.optimizer_set(1, "adamw", betas=(0.9, 0.95))
    report = engine.plan(strategy, microbatches=2, **plan)
    engine.commit()
    for param in params:
        engine.param_write(param, value(param))
    return engine, unit, report


def microbatches(engine, unit, rank):
    for micro in range(2):
        scale = engine.microbatch_begin("train", micro + 1.0, micro == 1)
        view = engine.unit_begin(unit, "F")
        assert all(view.params)
        engine.unit_end(unit, "F")
        view = engine.unit_begin(unit, "B", push=True)
        for param in range(2):
            engine.grad_push(param, gradient(rank, micro, param) * scale)
        engine.unit_end(unit, "B")
        engine.microbatch_end()


def train(context, strategy):
    engine, unit, report = make(context, strategy)
    microbatches(engine, unit, context.rank)
    step = engine.step([0.1, 0.01], [0.0, 0.1])
    values = [engine.param_read(p, np.empty(s)) for p, s in enumerate(SHAPES)]
    moment = engine.param_read(1, np.empty(SHAPES[1]), what="state0")
    shard = engine.shard_view(0)
    mine = shard.numpy().copy()
    np.testing.assert_array_equal(
        mine, values[0].ravel()[shard.begin:shard.begin + shard.count])
    shard.numpy()[:] = 5.0
    engine.param_touch()
    touched = engine.param_read(0, np.empty(SHAPES[0]))
    assert "unit" in engine.plan_text() and engine.plan_json()
    assert engine.report()
    total = report.total_bytes
    engine.close()
    engine.close()
    return step, values, moment, touched, total


class Steps(unittest.TestCase):
    def test_without_communication(self):
        """Fault point engine.comm: no rank waits for another, and afterwards
        they work together again."""
        for strategy in ("ddp", "zero2", "fsdp"):
            turns = [threading.Event(), threading.Event()]
            turns[0].set()

            def rank_main(context, strategy=strategy, turns=turns):
                engine, unit, _ = make(context, strategy)
                engine.param_touch()
                assert turns[context.rank].wait(ranks.TIMEOUT_S)
                context.set_fault("engine.comm=skip")
                for _ in range(3):
                    microbatches(engine, unit, context.rank)
                    engine.step([0.1, 0.01], [0.0, 0.1])
                context.set_fault(None)
                turns[context.rank - 1].set()
                microbatches(engine, unit, context.rank)
                report = engine.step([0.1, 0.01], [0.0, 0.1])
                engine.close()
                return report.step, report.weight_sum, report.grad_norm

            with self.subTest(strategy=strategy):
                first, second = ranks.run_threads(2, rank_main)
                self.assertEqual(first, second)
                self.assertEqual(first[:2], (4, 6.0))

    def test_strategies(self):
        means = [sum((m + 1) * gradient(r, m, p) for r in range(2)
                     for m in range(2)) / 6 for p in range(2)]
        expect = value(0) - 0.1 * means[0]
        adam = value(1) * (1 - 0.01 * 0.1) - 0.01 * means[1] / (
            np.abs(means[1]) + 1e-8)
        norm = np.sqrt(sum((m ** 2).sum() for m in means))
        for strategy in ("ddp", "zero1", "zero2", "fsdp"):
            with self.subTest(strategy=strategy):
                for step, values, moment, touched, total in ranks.run_threads(
                        2, lambda c: train(c, strategy)):
                    np.testing.assert_allclose(values[0], expect, rtol=1e-12)
                    np.testing.assert_allclose(values[1], adam, rtol=1e-12)
                    np.testing.assert_allclose(moment, 0.1 * means[1],
                                               rtol=1e-12)
                    self.assertAlmostEqual(step.grad_norm, norm, places=12)
                    self.assertEqual((step.step, step.skipped), (1, 0))
                    self.assertEqual(step.weight_sum, 6.0)
                    self.assertGreater(total, 0)
                    np.testing.assert_array_equal(touched,
                                                  np.full(SHAPES[0], 5.0))

    def test_refusals(self):
        with aliquot.open("single") as context:
            engine = aliquot.Engine(context.mesh())
            with self.assertRaisesRegex(ValueError, "'fdsp'.*known are"):
                engine.plan("fdsp")
            with self.assertRaises(aliquot.FailedPrecondition):
                engine.microbatch_begin()
            with self.assertRaises(TypeError):
                engine.param_add("p", (2,), "complex")
            aliquot.Engine(context.mesh()).optimizer_set(0, "sgd", betas=None)
            for function, told in (
                    (lambda: engine.param_add("q", 2), "shape=2 is one int"),
                    (lambda: engine.param_add("q", "23"), "shape='23' is one s"),
                    (lambda: engine.unit_add("u", 0), "params=0 is one int"),
                    (lambda: engine.plan("fsdp", phases="train"),
                     "phases='train' is one str; give a list of names"),
                    (lambda: engine.step("0.1"), "lr='0.1' is one str"),
                    (lambda: engine.step(0.1, "0"), "weight_decay='0' is one"),
                    (lambda: aliquot.Engine("dp_shard=1"),
                     "mesh='dp_shard=1' is of type str; give what context"),
                    (lambda: aliquot.Engine(context.mesh(), hints=["x=1"]),
                     "hints=.*is of type list; give a dict")):
                with self.assertRaisesRegex(TypeError, told):
                    function()
            engine.param_add("p", (2,), "f32")
            with self.assertRaises(aliquot.AlreadyExists):
                engine.param_add("p", (2,), "f32")

    def test_slab(self):
        with aliquot.open("single") as context:
            engine = aliquot.Engine(context.mesh())
            param = engine.param_add("p", (1000,), "f32")
            engine.unit_add("u", [param])
            engine.optimizer_set(0, "adamw")
            report = engine.plan("single", memory="slab")
            memory = np.zeros(report.total_bytes + 4096, np.uint8)
            start = -memory.ctypes.data % 4096
            engine.commit(memory[start:start + report.total_bytes])
            engine.param_write(param, np.arange(1000, dtype=np.float32))
            shard = engine.shard_view(param)
            self.assertTrue(np.shares_memory(shard.numpy(), memory))
            engine.close()


if __name__ == "__main__":
    ranks.main(globals())

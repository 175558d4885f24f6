"""A sharded model in the hands of a caller who errs, or who does what loops
around ordinary models do."""

import copy
import time
import unittest

import ranks
import torch
import torch_model as tm
from torch import nn

import aliquot
import aliquot.torch as at
from aliquot.torch import _direct

torch.set_num_threads(1)


class Misuse(unittest.TestCase):
    def test_too_many_microbatches(self):
        def body(context):
            model = tm.sharded(context)
            at.AdamW(model.parameters(), lr=tm.LR)
            model(tm.tokens(0, 0)).backward()
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "microbatches="):
                model(tm.tokens(0, 1)).backward()

        ranks.run_threads(2, body)

    def test_an_optimizer_of_torch_made_before_or_after(self):
        def body(context):
            for early in (True, False):
                model = tm.make()
                kept = torch.optim.AdamW(model.parameters())
                at.shard(model, "fsdp", context, [tm.Block])
                if not early:
                    kept = torch.optim.AdamW(at.commit(model).parameters())
                model(tm.tokens(0, 0)).backward()
                with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                            "torch's AdamW.*aliquot.torch.AdamW"
                                            ".*optimizer=\"torch\""):
                    kept.step()
                plain = tm.make()  # others are none of our business
                optimizer = torch.optim.AdamW(plain.parameters())
                plain(tm.tokens(0, 0)).backward()
                optimizer.step()

        ranks.run_threads(2, body)

    def test_wrong_arguments(self):
        def body(context):
            with self.assertRaisesRegex(ValueError, "FSDP2 is fsdp"):
                at.shard(tm.make(), "fsdp2", context)
            for mesh, axis in (("x=2", "x"), ("dp_shards=2", "dp_shards"),
                               ("dp_shard=-1,dp=1", "dp")):
                with self.assertRaisesRegex(
                        ValueError, f"{mesh}.*not know the axis {axis} .*of 2 "
                        "ranks.*dp_replicate and dp_shard"):
                    at.shard(tm.make(), "fsdp", context.mesh(mesh))
            with self.assertRaisesRegex(TypeError, "not int"):
                at.shard(3, "fsdp", context)
            with self.assertRaisesRegex(TypeError, "'prefetsch'.*prefetch"):
                at.shard(tm.make(), "fsdp", context, prefetsch=1)
            with self.assertRaisesRegex(
                    TypeError, r"units\[1\]='Block' is of type str; give cla"):
                at.shard(tm.make(), "fsdp", context, [tm.Block, "Block"])
            for units, told in (
                    ("Block", "units='Block' is one str; give a list"),
                    (tm.Block, "Block.* is one type; give a list"),
                    (nn.Linear(1, 1), "is one Linear; give a list")):
                with self.assertRaisesRegex(TypeError, told):
                    at.shard(tm.make(), "fsdp", context, units)
            parts = at.shard(tm.make(), "fsdp", context, {tm.Block})
            assert len(parts._aliquot_runtime.units) == tm.LAYERS + 1
            with self.assertRaisesRegex(ValueError, "lr is -1"):
                at.AdamW(tm.sharded(context).parameters(), lr=-1)
            with self.assertRaisesRegex(ValueError, "no Conv2d"):
                at.shard(tm.make(), "fsdp", context, [nn.Conv2d])
            with self.assertRaisesRegex(ValueError, "leave it out"):
                at.shard(tm.make(), "fsdp", context, optimizer="adamw")
            model = tm.sharded(context)
            with self.assertRaisesRegex(ValueError, "not an option"):
                at.AdamW(model.parameters(), amsgrad=True)
            optimizer = at.AdamW(model.parameters())
            optimizer.param_groups[0]["eps"] = 1.0
            model(tm.tokens(0, 0)).backward()
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "after the engine was planned"):
                optimizer.step()

        ranks.run_threads(2, body)

    def test_one_value_where_several_are_wanted(self):
        def body(context):
            model = tm.sharded(context)
            for function, kind, told in (
                    (lambda: at.AdamW(model.parameters(), betas=0.9), TypeError,
                     "betas=0.9 is one float; give a list of two numbers"),
                    (lambda: at.AdamW(model.parameters(), betas=(0.9,)),
                     ValueError, "holds 1 numbers; give two"),
                    (lambda: at.clip_grad_norm_("model", 1), TypeError,
                     "target='model' is one str; give a list of parameters"),
                    (lambda: at.clip_grad_norm_(["weight"], 1), TypeError,
                     "'weight' is of type str and no parameter.*model.param"),
                    (lambda: at.clip_grad_norm_([], 1), ValueError,
                     "0 were given.*give the model"),
                    (lambda: at.load_sharded_state_dict(model, "a.pt"),
                     TypeError, "saved='a.pt' is one str.*torch.load"),
                    (lambda: at.load_sharded_state_dict(model, ["a.pt"]),
                     ValueError, "dict 0 of 1 .* a str; give what"),
                    (lambda: at.load_sharded_state_dict(model, {"a": 1}),
                     ValueError, "a dict of format None; give what"),
                    (lambda: at.load_sharded_state_dict(model, []), ValueError,
                     "holds 0 dicts")):
                with self.assertRaisesRegex(kind, told):
                    function()

        ranks.run_threads(2, body)

    def test_meshes_of_wrong_kinds(self):
        """Of the default context: a world of one."""
        for mesh, kind, told in (
                (2, TypeError, "mesh=2 is of type int; give a str as in"),
                (["dp_shard"], TypeError, "is of type list; give a str as in"),
                ({"dp_shard": "1"}, TypeError, "size '1' is of type str; give"),
                ({"dp_shard": 1.5}, TypeError, "size 1.5 is of type float"),
                ("dp=1", ValueError, "not know the axis dp "),
                ({"dp": -1}, ValueError, "not know the axis dp ")):
            with self.subTest(mesh=mesh), self.assertRaisesRegex(kind, told):
                at.shard(tm.make(), "fsdp", mesh)

    def test_types_are_changed_before(self):
        def body(context):
            model = tm.sharded(context, "ddp")
            for change in (model.float, model.blocks[1].half,
                           lambda: model.to("meta"),
                           lambda: nn.Sequential(model).bfloat16()):
                with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                            "before aliquot.torch.shard"):
                    change()
            at.AdamW(model.parameters())
            self.assertRaises(aliquot.FailedPrecondition, model.float)
            before = model.blocks[1].mix.weight.data_ptr()
            model.to("cpu", torch.float64).cpu().double()
            assert model.blocks[1].mix.weight.data_ptr() == before
            copy.deepcopy(model).float()
            at.unshard(model).float()
            assert model.blocks[1].mix.weight.dtype == torch.float32

        ranks.run_threads(2, body)

    def test_zero_grad_of_the_model(self):
        """Drops what was summed, also while another rank is in its backward;
        so does the optimizer's."""
        def body(context):
            model = tm.sharded(context)
            optimizer = at.AdamW(model.parameters())
            model.zero_grad()
            tm.step(model, optimizer, context.rank, 0)
            before = model.state_dict()
            for drop in (model.zero_grad, optimizer.zero_grad):
                loss = model(tm.tokens(context.rank, 1))
                if context.rank == 1:
                    time.sleep(0.2)
                loss.backward()
                copy.deepcopy(model).zero_grad()
                assert model._aliquot_runtime.count == 1
                drop()
                optimizer.step()
                for name, value in model.state_dict().items():
                    assert torch.equal(value, before[name])
            tm.step(model, optimizer, context.rank, 1)
            return model.state_dict()["norm.weight"]

        plain = tm.Plain(2, tm.make(), lambda ps: torch.optim.AdamW(ps))
        for number in range(2):
            plain.step(number)
        for value in ranks.run_threads(2, body):
            self.assertLess((value - plain.model.norm.weight).abs().max(),
                            1e-11)

    def test_step_without_backward(self):
        def body(context):
            model = tm.sharded(context)
            optimizer = at.AdamW(model.parameters())
            before = model.state_dict()
            optimizer.step()
            optimizer.zero_grad()
            for name, value in model.state_dict().items():
                assert torch.equal(value, before[name])

        ranks.run_threads(2, body)

    def test_gradients_are_there_between_backward_and_step(self):
        plain = tm.Plain(2, tm.make())
        for rank in range(2):
            (plain.model(tm.tokens(rank, 0)) / 2).backward()
        expect = plain.model.norm.weight.grad

        def body(context):
            model = tm.sharded(context, "ddp")
            optimizer = at.AdamW(model.parameters())
            model(tm.tokens(context.rank, 0)).backward()
            grad = model.norm.weight.grad
            assert torch.allclose(grad * 2, expect * 2, atol=1e-14)
            assert abs(grad.norm().item() - expect.norm().item()) < 1e-14
            assert not grad.isnan().any()
            grad.zero_()
            assert grad.abs().sum() == 0
            grad.add_(expect)
            assert torch.allclose(grad + 0, expect, atol=1e-14)
            optimizer.step()
            assert model.norm.weight.grad is None
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "between the last backward"):
                grad + 1

        ranks.run_threads(2, body)

    def test_gradients_in_place(self):
        """As many as there are plain matrices, and refusals instead of wrong
        sums where a weight is used in another way too."""
        written = []

        def count(param):
            written.append(param.name)
            return done(param)

        done, _direct.done = _direct.done, count
        self.addCleanup(setattr, _direct, "done", done)

        def body(context):
            model = at.shard(tm.make(tied=False), "ddp", context, [tm.Block],
                             lend_from=1)
            optimizer = at.AdamW(model.parameters(), lr=tm.LR)
            tm.step(model, optimizer, context.rank, 0)
            count = len(written)
            loss = model(tm.tokens(context.rank, 1))
            kept = dict(model.named_parameters())["blocks.0.mix.weight"]
            loss = loss + kept.square().sum()
            with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                        "final in this microbatch"):
                loss.backward()
            return count

        self.assertEqual(ranks.run_threads(1, body), [2 * tm.LAYERS + 1])
        self.assertIn("embed.weight", written)
        self.assertNotIn("head.weight", written)  # the model multiplies by it

    def test_non_finite_gradients_skip_the_step(self):
        def body(context):
            model = tm.sharded(context)
            optimizer = at.AdamW(model.parameters())
            before = model.state_dict()
            loss = model(tm.tokens(context.rank, 0))
            (loss * (float("nan") if context.rank else 1)).backward()
            optimizer.step()
            assert optimizer.skipped
            assert optimizer.last_report.bad_rank == 1
            for name, value in model.state_dict().items():
                assert torch.equal(value, before[name])
            tm.step(model, optimizer, context.rank, 1)
            assert not optimizer.skipped

        ranks.run_threads(2, body)

    def test_tensors_outlive_the_engine(self):
        def body(context):
            for end in (at.close, at.unshard):
                for strategy in ("ddp", "fsdp"):
                    model = sharded_once(context, strategy)
                    kept = [p.detach() for p in model.parameters()]
                    flat = model._aliquot_runtime.engine.shard_view(0).numpy()
                    before = [k.clone() for k in kept] + [flat.copy()]
                    end(model)
                    filler = [torch.full((1 << 16,), 7.0) for _ in range(8)]
                    for now, then in zip(kept + [torch.from_numpy(flat)],
                                         before[:-1] +
                                         [torch.from_numpy(before[-1])]):
                        assert torch.equal(now, then)
                    with self.assertRaises((aliquot.FailedPrecondition,
                                            AttributeError)):
                        model._aliquot_runtime.engine.plan_text()
                    del filler

        def sharded_once(context, strategy):
            model = tm.sharded(context, strategy)
            optimizer = at.AdamW(model.parameters())
            tm.step(model, optimizer, context.rank, 0)
            return model

        ranks.run_threads(2, body)


if __name__ == "__main__":
    ranks.main(globals())

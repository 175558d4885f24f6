"""shard() against plain PyTorch in one process, in f64: losses to 1e-13,
weights to 1e-11, for every strategy on 2 and 4 ranks and every way of running a
model."""

import copy
import unittest

import ranks
import torch
import torch_model as tm
from torch import nn

import aliquot.torch as at

STEPS = 4
# Every weight's gradient is written where the reduction reads it.
IN_PLACE = dict(lend_from=1)
torch.set_num_threads(1)


def plans(size):
    for strategy in ("ddp", "zero1", "zero2", "fsdp") + (
            ("hsdp",) if size == 4 else ()):
        yield strategy, {}
    yield "fsdp", dict(gather="copy")


def make_optimizer(model):
    return at.AdamW(tm.trainable(model), lr=tm.LR, betas=tm.BETAS,
                    weight_decay=tm.DECAY)


class Training(unittest.TestCase):
    def plain(self, size, model, micros=1, clip=0.0, optimizer=None,
              between=None):
        plain, expect = tm.Plain(size, model, optimizer, clip), []
        for step in range(STEPS):
            losses, norm = plain.step(step, micros)
            extra = between(plain.model) if between else None
            expect.append((losses, norm, extra))
        return expect, plain.model.state_dict()

    def compare(self, results, expect, state):
        for rank, (steps, weights) in enumerate(results):
            self.assertEqual(len(steps), len(expect))
            for (losses, norm, extra), want in zip(steps, expect):
                for mine, theirs in zip(losses, want[0][rank]):
                    self.assertAlmostEqual(mine, theirs, delta=1e-13)
                if norm is not None:
                    self.assertAlmostEqual(norm, want[1], delta=1e-12)
                if extra is not None:
                    self.assertAlmostEqual(extra, want[2], delta=1e-13)
            self.assertEqual(set(weights), set(state))
            for name, value in weights.items():
                self.assertEqual(value.shape, state[name].shape, name)
                worst = (value - state[name]).abs().max().item()
                self.assertLess(worst, 1e-11, name)

    def train(self, sizes=(2,), micros=1, clip=None, between=None,
              units=(tm.Block,), sync_context=None, only=None, optimizer=None,
              plain_optimizer=None, more=None, **variant):
        model = tm.make(**variant)
        for size in sizes:
            expect, state = self.plain(
                size, model, micros, 0.5 if clip else 0.0, plain_optimizer,
                between)
            for strategy, plan in plans(size):
                if only and strategy not in only:
                    continue

                def body(context):
                    mine = at.shard(
                        copy.deepcopy(model), strategy,
                        context.mesh(tm.MESHES[strategy]), units,
                        microbatches=micros, poison=True, **plan,
                        **{**IN_PLACE, **(more or {})})
                    step_all = (optimizer or make_optimizer)(mine)
                    steps = [self.one(mine, step_all, context.rank, step,
                                      micros, clip, between, sync_context)
                             for step in range(STEPS)]
                    weights = mine.state_dict()
                    at.close(mine)
                    return steps, weights

                with self.subTest(size=size, strategy=strategy, **plan):
                    self.compare(ranks.run_threads(size, body), expect, state)

    def one(self, model, optimizer, rank, step, micros, clip, between,
            sync_context):
        losses, norm = [], None
        for micro in range(micros):
            inside = (sync_context(model, micro) if sync_context else
                      at.microbatch(model))
            with inside:
                loss = model(tm.tokens(rank, step, micro))
                (loss / micros).backward()
            losses.append(loss.item())
        if clip is not None:
            norm = clip(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        extra = between(model) if between else None
        return losses, None if norm is None else norm.item(), extra

    def test_plain_loop(self):
        self.train(sizes=(1, 2, 4))

    def test_gradients_by_copy(self):
        self.train(more=dict(lend=False))
        self.train(micros=2, how="reentrant", more=dict(lend=False))

    def test_untied_without_units(self):
        self.train(units=(), tied=False)

    def test_accumulation(self):
        self.train(sizes=(2, 4), micros=3)
        self.train(micros=3, only=("fsdp", "zero2"), more=dict(defer="last"))

    def test_no_sync(self):
        self.train(micros=2, sync_context=lambda model, micro: (
            at.no_sync(model) if micro == 0 else at.microbatch(model)))
        self.train(micros=2, only=("ddp", "fsdp"),
                   sync_context=lambda model, micro: (
                       model.no_sync() if micro == 0
                       else at.microbatch(model)))

    def test_clipping(self):
        self.train(sizes=(2, 4), clip=at.clip_grad_norm_)
        self.train(sizes=(2, 4), clip=lambda model, most:
                   nn.utils.clip_grad_norm_(model.parameters(), most))
        self.train(only=("ddp", "fsdp"), micros=2, clip=lambda model, most:
                   nn.utils.clip_grad_norm_(model.parameters(), most,
                                            foreach=True))

    def test_frozen(self):
        self.train(sizes=(2, 4), frozen=True)

    def test_lora(self):
        self.train(rank=2)
        self.train(rank=2, how="graph", micros=2)
        self.train(rank=2, how="reentrant", only=("ddp", "fsdp"))

    def test_checkpointing(self):
        self.train(sizes=(2, 4), how="graph")
        self.train(sizes=(2, 4), how="reentrant")
        self.train(how="pairs", more=dict(max_open=2))

    def test_checkpoints_inside_a_unit(self):
        """Of which weights are used twice, and once outside too."""
        for how in ("inside", "inside graph"):
            self.train(how=how, rank=2)
            self.train(how=how, only=("ddp", "fsdp"), micros=2, tied=False,
                       more=dict(lend=False))
            self.train(how=how, only=("fsdp",), units=(), frozen=True)

    def test_evaluation_in_between(self):
        held_out = tm.tokens(9, 0)

        def between(model):
            with torch.no_grad():
                return model(held_out).item()

        self.train(between=between, micros=2)

    def test_inference_mode_and_submodules(self):
        held_out = tm.tokens(9, 0)

        def between(model):
            with torch.inference_mode():
                x = model.embed(held_out)
                x = model.blocks[2](x)["hidden"]
                x = model.blocks[0].mix(x)
                return x.sum().item()

        self.train(between=between)

    def test_scheduler_and_groups(self):
        def grouped(kind):
            def make(model):
                params = (model if isinstance(model, list)
                          else tm.trainable(model))
                flat = [p for p in params if p.ndim < 2 or p.numel() == 0]
                ids = {id(p) for p in flat}
                chosen = kind(
                    [dict(params=[p for p in params if id(p) not in ids],
                          weight_decay=tm.DECAY),
                     dict(params=flat, weight_decay=0.0, lr=3 * tm.LR)],
                    lr=tm.LR, betas=tm.BETAS)
                scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
                    chosen, 2 * STEPS)
                chosen.register_step_post_hook(lambda *_: scheduler.step())
                return chosen
            return make

        self.train(sizes=(2,), plain_optimizer=grouped(torch.optim.AdamW),
                   optimizer=grouped(at.AdamW))

    def test_sgd(self):
        options = dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
        self.train(plain_optimizer=lambda ps: torch.optim.SGD(ps, **options),
                   optimizer=lambda m: at.SGD(m.parameters(), **options))
        self.train(plain_optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1),
                   optimizer=lambda m: at.SGD(m.parameters(), lr=0.1))

    def test_torch_optimizers_on_the_shards(self):
        for kind in (torch.optim.AdamW, torch.optim.RMSprop):
            options = dict(lr=tm.LR, weight_decay=tm.DECAY)
            self.train(
                sizes=(2, 4), more=dict(optimizer="torch"), micros=2,
                plain_optimizer=lambda ps: kind(ps, **options),
                clip=lambda model, most:
                nn.utils.clip_grad_norm_(model.parameters(), most),
                optimizer=lambda m: kind(tm.trainable(m), **options))
        self.train(more=dict(optimizer="torch"), clip=at.clip_grad_norm_,
                   plain_optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1),
                   optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1))


class Sequences(unittest.TestCase):
    """Loops that are not one forward and one backward per microbatch."""

    def run_both(self, loop, size=2, **options):
        """loop(model, data(k), optimizer, scale) -> a number, on plain and on
        sharded models; data differ per rank, so the plain one sums them."""
        model = tm.make()
        plain = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=tm.LR,
                                      weight_decay=0)
        expect = []
        for step in range(STEPS):
            row = [loop(plain, lambda k, r=r: tm.tokens(r, step, k), 1 / size)
                   for r in range(size)]
            optimizer.step()
            optimizer.zero_grad()
            expect.append(row)
        for strategy, plan in plans(size):
            def body(context):
                mine = at.shard(copy.deepcopy(model), strategy,
                                context.mesh(tm.MESHES[strategy]), [tm.Block],
                                poison=True,
                                **{**IN_PLACE, **plan, **options})
                chosen = at.AdamW(mine.parameters(), lr=tm.LR,
                                  weight_decay=0)
                got = []
                for step in range(STEPS):
                    got.append(loop(mine, lambda k: tm.tokens(
                        context.rank, step, k), 1.0))
                    chosen.step()
                    chosen.zero_grad()
                return got, mine.state_dict()

            with self.subTest(strategy=strategy, **plan):
                for rank, (got, state) in enumerate(
                        ranks.run_threads(size, body)):
                    for mine, row in zip(got, expect):
                        self.assertAlmostEqual(mine, row[rank], delta=1e-13)
                    for name, value in plain.state_dict().items():
                        self.assertLess((value - state[name]).abs().max(),
                                        1e-11, name)

    def test_two_forwards_one_backward(self):
        def loop(model, data, scale):
            loss = model(data(0)) + model(data(1))
            (loss * scale).backward()
            return loss.item()

        self.run_both(loop)

    def test_two_forwards_two_backwards(self):
        def loop(model, data, scale):
            first, second = model(data(0)), model(data(1))
            (first * scale).backward()
            (second * scale).backward()
            return first.item() + second.item()

        self.run_both(loop, microbatches=2)

    def test_retained_graph(self):
        def loop(model, data, scale):
            loss = model(data(0))
            (loss * scale).backward(retain_graph=True)
            (loss * scale * 0.5).backward()
            return loss.item()

        self.run_both(loop, microbatches=2)

    def test_output_not_used(self):
        def loop(model, data, scale):
            model(data(0))
            loss = model(data(1))
            (loss * scale).backward()
            model(data(2))
            return loss.item()

        self.run_both(loop, microbatches=2)

    def test_no_grad_forward_inside(self):
        def loop(model, data, scale):
            loss = model(data(0))
            with torch.no_grad():
                target = model(data(1))
            loss = (loss - target * 0.1) ** 2
            (loss * scale).backward()
            return loss.item()

        self.run_both(loop)

    def test_a_method_as_entry(self):
        def loop(model, data, scale):
            loss = model.logits(data(0)).square().mean()
            (loss * scale).backward()
            return loss.item()

        self.run_both(loop)

    def test_submodules_as_entry(self):
        def loop(model, data, scale):
            x = model.embed(data(0))
            x = model.blocks[3].norm(model.blocks[1](x)["hidden"])
            loss = model.blocks[0](x)["hidden"].square().mean()
            (loss * scale).backward()
            return loss.item()

        self.run_both(loop)

    def test_reentrant_with_several_uses(self):
        def loop(model, data, scale):
            model.how = "reentrant"
            loss = model(data(0)) + 2 * model(data(1))
            (loss * scale).backward()
            return loss.item()

        self.run_both(loop)

    def test_a_module_used_twice(self):
        def loop(model, data, scale):
            block = model.blocks[1]
            x = model.embed(data(0)[:, :-1])
            x = x + block.out(block.mix(x))
            y = block.out(block.mix(x)) + model.blocks[2](x)["hidden"]
            loss = (block(y)["hidden"] ** 2).mean()
            (loss * scale).backward()
            return loss.item()

        self.run_both(loop)

    def test_early_step(self):
        """Fewer microbatches than planned."""
        def loop(model, data, scale):
            loss = model(data(0))
            (loss * scale).backward()
            return loss.item()

        self.run_both(loop, microbatches=3)

    def test_weights_by_tokens(self):
        model = tm.make()
        sums = nn.CrossEntropyLoss(reduction="sum")

        def loss_of(model, batch):
            return sums(model.logits(batch[:, :-1]).flatten(0, 1),
                        batch[:, 1:].flatten())

        plain = copy.deepcopy(model)
        count = 0
        for rank in range(2):
            for micro in range(2):
                batch = tm.tokens(rank, 0, micro)
                loss_of(plain, batch).backward()
                count += batch[:, 1:].numel()
        for p in plain.parameters():
            p.grad /= count
        torch.optim.AdamW(plain.parameters(), lr=tm.LR).step()

        def body(context):
            mine = at.shard(copy.deepcopy(model), "fsdp", context, [tm.Block],
                            microbatches=2)
            optimizer = at.AdamW(mine.parameters(), lr=tm.LR)
            for micro in range(2):
                batch = tm.tokens(context.rank, 0, micro)
                with at.microbatch(mine, weight=batch[:, 1:].numel()):
                    loss_of(mine, batch).backward()
            optimizer.step()
            return mine.state_dict(), optimizer.last_report.weight_sum

        for state, total in ranks.run_threads(2, body):
            self.assertEqual(total, count)
            for name, value in plain.state_dict().items():
                self.assertLess((value - state[name]).abs().max(), 1e-12, name)


if __name__ == "__main__":
    ranks.main(globals())

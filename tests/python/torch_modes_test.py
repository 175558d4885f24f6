"""Mixed precision, autocast, generation, functional entries."""

import copy
import unittest

import ranks
import torch
import torch_model as tm

import aliquot.torch as at

STRATEGIES = ("ddp", "zero1", "zero2", "fsdp")
torch.set_num_threads(1)


def sharded(context, strategy="fsdp", model=None, **options):
    return at.shard(copy.deepcopy(model or tm.make()), strategy, context,
                    [tm.Block], poison=True, **options)


def adamw(model):
    return at.AdamW(tm.trainable(model), lr=tm.LR, betas=tm.BETAS,
                    weight_decay=tm.DECAY)


def train(model, optimizer, rank, first, last):
    for step in range(first, last):
        model(tm.tokens(rank, step)).backward()
        optimizer.step()


class Precision(unittest.TestCase):
    def losses(self, strategy, steps=6, **options):
        def body(context):
            model = tm.make().float()
            at.shard(model, strategy, context, [tm.Block], poison=True,
                     **options)
            if options.get("optimizer"):
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
            else:
                optimizer = at.AdamW(model.parameters(), lr=0.02)
            losses = []
            for step in range(steps):
                loss = model(tm.tokens(context.rank, step % 2))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            state = model.state_dict()
            assert state["embed.weight"].dtype == torch.float32
            return losses, state["blocks.1.mix.weight"]

        return ranks.run_threads(2, body)

    def test_half_compute_with_masters(self):
        full = self.losses("ddp")
        for strategy in STRATEGIES:
            for more in ({}, dict(reduce_dtype=torch.float32),
                         dict(optimizer="torch")):
                with self.subTest(strategy=strategy, **more):
                    got = self.losses(strategy, dtype=torch.bfloat16, **more)
                    self.assertTrue(torch.equal(got[0][1], got[1][1]))
                    for (mine, _), (theirs, _) in zip(got, full):
                        for a, b in zip(mine, theirs):
                            self.assertAlmostEqual(a, b, delta=0.03)
                    # Masters move by less than bf16 could.
                    drift = (got[0][1] - full[0][1]).abs().max()
                    self.assertLess(drift, 0.05)

    def test_autocast(self):
        def train_with(model, context, optimizer):
            losses = []
            for step in range(4):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(tm.tokens(0, step))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses

        plain = tm.make().float()
        expect = train_with(plain, None,
                            torch.optim.AdamW(plain.parameters(), lr=tm.LR))

        for strategy, gather in (("ddp", "auto"), ("fsdp", "auto"),
                                 ("fsdp", "copy")):
            def body(context):
                model = at.shard(tm.make().float(), strategy, context,
                                 [tm.Block], gather=gather, poison=True)
                return train_with(model, context,
                                  at.AdamW(model.parameters(), lr=tm.LR))

            for got in ranks.run_threads(2, body):
                for a, b in zip(got, expect):
                    self.assertAlmostEqual(a, b, delta=2e-3)


class Holding(unittest.TestCase):
    @staticmethod
    def generate(model, count):
        text = torch.tensor([[3]])
        while text.shape[1] < count:
            best = model.logits(text)[:, -1].argmax(-1, keepdim=True)
            text = torch.cat([text, best], 1)
        return text.tolist()

    def test_ranks_generate_different_lengths(self):
        plain = tm.Plain(2, tm.make())
        expect = []
        for step in range(3):
            plain.step(step)
            with torch.no_grad():
                expect.append([self.generate(plain.model, 2 + 3 * rank)
                               for rank in range(2)])
        for strategy, gather in (("ddp", "auto"), ("fsdp", "auto"),
                                 ("fsdp", "copy")):
            def body(context):
                model = sharded(context, strategy, gather=gather, hold=True)
                optimizer, texts = adamw(model), []
                for step in range(3):
                    train(model, optimizer, context.rank, step, step + 1)
                    with at.hold(model):
                        texts.append(self.generate(model,
                                                   2 + 3 * context.rank))
                return texts

            with self.subTest(strategy=strategy, gather=gather):
                for rank, texts in enumerate(ranks.run_threads(2, body)):
                    self.assertEqual(texts, [row[rank] for row in expect])

    def test_functional_entry(self):
        plain = tm.make()
        weight = plain.embed.weight
        loss = (weight[2] @ weight[3]) ** 2
        loss.backward()
        torch.optim.SGD([weight], lr=0.5).step()

        def body(context):
            model = sharded(context, gather="copy")
            optimizer = at.SGD(model.parameters(), lr=0.5)
            with at.gathered(model):
                weight = model.embed.weight
                assert weight.shape == (tm.VOCAB, tm.DIM)
                loss = (weight[2] @ weight[3]) ** 2
            loss.backward()
            optimizer.step()
            return loss.item(), model.state_dict()["embed.weight"]

        for got, value in ranks.run_threads(2, body):
            self.assertAlmostEqual(got, loss.item(), delta=1e-13)
            self.assertLess((value - weight).abs().max(), 1e-12)


if __name__ == "__main__":
    ranks.main(globals())

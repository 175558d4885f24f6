"""join(): ranks with different numbers of batches."""

import copy
import unittest

import ranks
import torch
import torch_model as tm
from torch import nn

import aliquot
import aliquot.torch as at

torch.set_num_threads(1)
CLIP = 0.5


def sharded(context, strategy, **options):
    mesh = context.mesh("dp_replicate=3,dp_shard=1" if strategy == "hsdp"
                        else "")
    model = at.shard(tm.make(), strategy, mesh, [tm.Block], poison=True,
                     **options)
    return model, at.AdamW(model.parameters(), lr=tm.LR, betas=tm.BETAS,
                           weight_decay=tm.DECAY)


def plain(counts, micros=1):
    """One process: in step s, the ranks that have a batch for it."""
    model = copy.deepcopy(tm.make())
    optimizer = torch.optim.AdamW(model.parameters(), lr=tm.LR,
                                  betas=tm.BETAS, weight_decay=tm.DECAY)
    for step in range(-(-max(counts) // micros)):
        batches = [(rank, step * micros + m) for m in range(micros)
                   for rank, count in enumerate(counts)
                   if step * micros + m < count]
        active = len({rank for rank, _ in batches})
        for rank, batch in batches:
            (model(tm.tokens(rank, batch)) / active).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


class Join(unittest.TestCase):
    def check(self, counts, states):
        for state in states:
            for name, value in plain(*counts).items():
                self.assertLess((value - state[name]).abs().max(), 1e-11, name)

    def test_ranks_end_at_different_steps(self):
        for strategy in tm.MESHES:
            for counts in ((1, 3, 2), (0, 0, 2)):
                def body(context):
                    model, optimizer = sharded(context, strategy)
                    with at.join(model):
                        for batch in range(counts[context.rank]):
                            model(tm.tokens(context.rank, batch)).backward()
                            at.clip_grad_norm_(model, CLIP)
                            optimizer.step()
                            optimizer.zero_grad()
                            with torch.no_grad():
                                model(tm.tokens(context.rank, batch))
                    return model.state_dict(), optimizer.state_dict()

                with self.subTest(strategy, counts=counts):
                    results = ranks.run_threads(3, body)
                    self.check((counts,), [state for state, _ in results])
                    for _, state in results:
                        for entry in state["state"].values():
                            self.assertEqual(entry["step"].item(),
                                             max(counts))

    def test_accumulation_that_ends_in_the_middle(self):
        counts = 4, 1, 3

        def body(context):
            model, optimizer = sharded(context, "fsdp", microbatches=2)
            with at.join(model):
                for batch in range(counts[context.rank]):
                    model(tm.tokens(context.rank, batch)).backward()
                    if batch % 2 == 1:
                        at.clip_grad_norm_(model, CLIP)
                        optimizer.step()
            return model.state_dict()

        self.check((counts, 2), ranks.run_threads(3, body))

    def test_training_goes_on_after_join(self):
        def body(context):
            model, optimizer = sharded(context, "zero2")
            for epoch in range(2):
                with at.join(model):
                    for batch in range(1 + context.rank):
                        model(tm.tokens(context.rank, batch)).backward()
                        optimizer.step()
            model(tm.tokens(context.rank, 9)).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            return norm.item(), model.state_dict()

        first, second = ranks.run_threads(2, body)
        self.assertEqual(first[0], second[0])
        for name, value in first[1].items():
            self.assertTrue(torch.equal(value, second[1][name]), name)

    def test_what_needs_every_rank_is_refused(self):
        def body(context):
            model, optimizer = sharded(context, "fsdp")
            with at.join(model):
                model(tm.tokens(context.rank, 0)).backward()
                with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                            "clip_grad_norm_"):
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with self.assertRaisesRegex(aliquot.FailedPrecondition,
                                            "dropped"):
                    optimizer.zero_grad()
                optimizer.step()
            other = at.shard(tm.make(), "fsdp", context, optimizer="torch")
            with self.assertRaisesRegex(ValueError, "join"):
                with at.join(other):
                    pass

        ranks.run_threads(2, body)


if __name__ == "__main__":
    unittest.main()

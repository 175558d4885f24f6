"""One model, one loop, seven ways to train it: torch's DistributedDataParallel
and fully_shard (FSDP2) over gloo, and shard() with every strategy.

One world of processes per number of ranks runs them one after the other, and
each rank compares its own losses and the full weights.  Ranks have different
data.  What is on: two microbatches per step, clipping of the global norm, an
embedding tied to the head, frozen weights, checkpointed blocks.

Torch's DDP cannot keep master weights in f32 and compute in bf16 (autocast
rounds per operation, and leaves norms in f32), so the mixed runs compare with
fully_shard alone.
"""

import contextlib
import os
import unittest

import ranks
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import aliquot.torch as at

VOCAB, DIM, HEADS, LAYERS, SEQ, BATCH = 61, 32, 4, 3, 12, 2
STEPS, LR, CLIP = 20, 1e-3, 0.5
MESHES = {"hsdp": "dp_replicate=2,dp_shard=-1"}
STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp")
BF16 = 2.0 ** -8  # unit roundoff

CASES = {
    # name: (dtype, micros, clip, tied, frozen, checkpointed, mixed)
    "all f64": (torch.float64, 2, True, True, True, True, False),
    "all f32": (torch.float32, 2, True, True, True, True, False),
    "all mixed": (torch.float32, 2, True, True, True, True, True),
}
# dtype: (of losses, of weights).
BOUNDS = {torch.float64: (1e-13, 1e-11), torch.float32: (1e-6, 0.1 * LR)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.RMSNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(
            batch, seq, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, DIM))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, tied, frozen, checkpointed):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.place = nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.place.requires_grad_(False)
            self.blocks[1].up.weight.requires_grad_(False)
            self.blocks[1].second.requires_grad_(False)
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1]) + self.place(torch.arange(SEQ))
        for block in self.blocks:
            x = (checkpoint(block, x, use_reentrant=False)
                 if self.checkpointed else block(x))
        logits = self.head(self.norm(x)).flatten(0, 1)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return functional.cross_entropy(logits, tokens[:, 1:].flatten())


def make(dtype, tied, frozen, checkpointed):
    torch.manual_seed(7)
    model = GPT(tied, frozen, checkpointed)
    with torch.no_grad():
        model.embed.weight.mul_(0.3)
    return model.to(dtype)


def batch(rank, step, micro):
    source = torch.Generator().manual_seed(1 + 1000 * step + 10 * micro + rank)
    return torch.randint(0, VOCAB, (BATCH, SEQ + 1), generator=source)


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def train(model, optimizer, rank, micros, clip, accumulating):
    """Losses of all microbatches.  accumulating(model, on): a context."""
    losses = []
    for step in range(STEPS):
        for micro in range(micros):
            with accumulating(model, micro + 1 < micros):
                loss = model(batch(rank, step, micro))
                (loss / micros).backward()
            losses.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def with_ddp(model, rank, micros, clip, mixed):
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trainable(ddp), lr=LR)
    losses = train(ddp, optimizer, rank, micros, clip, lambda m, on:
                   m.no_sync() if on else contextlib.nullcontext())
    return losses, model.state_dict()


@contextlib.contextmanager
def unsynced(model, on):
    model.set_requires_gradient_sync(not on)
    yield


def with_fsdp2(model, rank, micros, clip, mixed):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(trainable(model), lr=LR)
    losses = train(model, optimizer, rank, micros, clip, unsynced)
    return losses, {k: v.full_tensor() for k, v in model.state_dict().items()}


def with_ours(model, rank, micros, clip, mixed, strategy):
    options = dict(dtype=torch.bfloat16,
                   reduce_dtype=torch.float32) if mixed else {}
    model = at.shard(model, strategy, MESHES.get(strategy), [Block],
                     microbatches=micros, lend_from=512, name=strategy,
                     **options)
    optimizer = at.AdamW(trainable(model), lr=LR)
    losses = train(model, optimizer, rank, micros, clip,
                   lambda m, on: contextlib.nullcontext())
    weights = model.state_dict()
    at.close(model)
    return losses, weights


def rounded_if_frozen(weights):
    """shard(dtype=...) keeps no f32 copy of what is never updated."""
    frozen = {name for name, p in make(torch.float32, True, True, False
                                       ).named_parameters()
              if not p.requires_grad}
    return {name: value.bfloat16().float() if name in frozen else value
            for name, value in weights.items()}


def worst(mine, theirs):
    losses = max(abs(a - b) for a, b in zip(mine[0], theirs[0], strict=True))
    assert mine[1].keys() == theirs[1].keys()
    weights = max((mine[1][k] - v).abs().max().item()
                  for k, v in theirs[1].items())
    return losses, weights


def compare(rank, name):
    """Trains one case all ways; lines of what was measured."""
    dtype, micros, clip, tied, frozen, checkpointed, mixed = CASES[name]

    def run(how, *more):
        return how(make(dtype, tied, frozen, checkpointed), rank, micros, clip,
                   mixed, *more)

    peers = {} if mixed else {"DDP": run(with_ddp)}
    peers["FSDP2"] = run(with_fsdp2)
    for peer, result in peers.items():
        first, last = result[0][0], result[0][-1]
        assert first != last and last < 6, (peer, first, last)
    for strategy in STRATEGIES:
        mine = run(with_ours, strategy)
        for peer, theirs in peers.items():
            if mixed:
                theirs = (theirs[0], rounded_if_frozen(theirs[1]))
            losses, weights = worst(mine, theirs)
            what = "%s, %s against %s, rank %d: losses differ by %.1e, " \
                "weights by %.1e" % (name, strategy, peer, rank, losses,
                                     weights)
            if mixed:
                check_mixed(mine, theirs, losses, weights, what)
            else:
                bounds = BOUNDS[dtype]
                assert losses <= bounds[0] and weights <= bounds[1], what
            if rank == 0:
                print(what, flush=True)


def check_mixed(mine, theirs, losses, weights, what):
    """Same masters, same rounding to bf16, same operations: the first losses
    have the same bits.  Then masters differ in the last bits of f32 (sums over
    ranks and AdamW in other orders), and where one lies between two bf16
    numbers the copies that are computed with differ by one unit: losses by
    about bf16's unit roundoff.  AdamW moves an element whose gradient is all
    rounding noise by up to LR in either direction: few do, none far."""
    assert mine[0][0] == theirs[0][0], what
    assert losses <= BF16 * theirs[0][0] and weights <= 4 * LR, what


def body():
    from torch import distributed
    torch.set_num_threads(1)
    rank = int(os.environ["ALIQUOT_RANK"])
    size = int(os.environ["ALIQUOT_WORLD_SIZE"])
    distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:" + os.environ["GLOO_PORT"],
        rank=rank, world_size=size)
    for name in CASES:
        compare(rank, name)
    distributed.destroy_process_group()


class Parity(unittest.TestCase):
    def run_world(self, size):
        with ranks.Processes(size, "body", GLOO_PORT=str(ranks.free_port()),
                             GLOO_SOCKET_IFNAME="lo",
                             ALIQUOT_TIMEOUT_S="200") as world:
            for rank, (status, text) in enumerate(world.outcomes(400)):
                self.assertEqual(status, 0, "rank %d:\n%s" % (rank, text))
                if rank == 0:
                    print(text)
                    self.assertEqual(text.count("against"), len(STRATEGIES) * (
                        sum(1 if case[-1] else 2 for case in CASES.values())))

    def test_two_ranks(self):
        self.run_world(2)

    def test_four_ranks(self):
        self.run_world(4)


if __name__ == "__main__":
    ranks.main(globals())

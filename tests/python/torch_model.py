"""A small transformer with the variants that shard() must take as they are, and
its training on all ranks' data in one process, which is what shard() must
repeat."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import aliquot.torch as at

VOCAB, DIM, LAYERS, SEQ = 13, 8, 4, 5
LR, DECAY, BETAS = 0.01, 0.1, (0.9, 0.95)
MESHES = {"ddp": "", "zero1": "", "zero2": "", "fsdp": "",
          "hsdp": "dp_replicate=2,dp_shard=-1"}


def linear(inputs, outputs, rank, device):
    options = dict(device=device, dtype=torch.float64)
    return (LowRank(inputs, outputs, rank, **options) if rank > 0 else
            nn.Linear(inputs, outputs, **options))


class LowRank(nn.Linear):
    """The weight frozen, and a low-rank update of it."""

    def __init__(self, inputs, outputs, rank, **options):
        super().__init__(inputs, outputs, **options)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, inputs, **options))
        self.up = nn.Parameter(torch.empty(outputs, rank, **options))

    def reset_parameters(self):
        pass  # see fill()

    def forward(self, x):
        y = super().forward(x)
        return y + functional.linear(functional.linear(x, self.down), self.up)


class Block(nn.Module):
    def __init__(self, rank=0, device=None):
        super().__init__()
        self.norm = nn.LayerNorm(DIM, device=device, dtype=torch.float64)
        self.mix = linear(DIM, 2 * DIM, rank, device)
        self.out = linear(2 * DIM, DIM, rank, device)
        self.reentrant = None  # of the checkpoints inside, if there are any
        self.register_buffer("scale", torch.ones((), device=device,
                                                 dtype=torch.float64))

    def inside(self, part, x):
        return part(x) if self.reentrant is None else checkpoint(
            part, x, use_reentrant=self.reentrant)

    def forward(self, x, past=None):
        mean = x.cumsum(1) / torch.arange(
            1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        y = self.inside(lambda x: functional.silu(self.mix(self.norm(x))),
                        x + mean)
        if self.reentrant is not None:  # weights of both, and of one alone
            y = y + 0.1 * self.inside(
                lambda x: self.mix(self.norm.weight * self.out(x)), y)
            y = functional.silu(y)
        return {"hidden": x + self.scale * self.out(y), "unused": [y.sum()]}


class Model(nn.Module):
    """how: None, "reentrant", "graph", "pairs": a checkpoint over two blocks,
    "inside" and "inside graph": checkpoints over parts of a block.  tied: the head uses the embedding."""

    def __init__(self, how=None, rank=0, tied=True, frozen=False, device=None):
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(VOCAB, DIM, device=device,
                                  dtype=torch.float64)
        self.blocks = nn.ModuleList(Block(rank, device) for _ in range(LAYERS))
        if how in ("inside", "inside graph"):
            for block in self.blocks:
                block.reentrant = how == "inside"
        self.norm = nn.LayerNorm(DIM, device=device, dtype=torch.float64)
        self.head = linear(DIM, VOCAB, 0, device)
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            for part in (self.blocks[1], self.norm):
                part.requires_grad_(False)
        self.fail_in = None

    def hidden(self, tokens):
        x = self.embed(tokens)
        if self.how == "pairs" and torch.is_grad_enabled():
            for first, second in zip(self.blocks[::2], self.blocks[1::2]):
                x = checkpoint(lambda x, a=first, b=second:
                               b(a(x)["hidden"])["hidden"], x,
                               use_reentrant=False)
            return x
        for i, block in enumerate(self.blocks):
            if i == self.fail_in:
                raise ArithmeticError("a bad batch")
            if block.reentrant is not None or self.how is None or not torch.is_grad_enabled():
                x = block(x)["hidden"]
            else:
                x = checkpoint(lambda x, block=block: block(x)["hidden"], x,
                               use_reentrant=self.how == "reentrant")
        return x

    def logits(self, tokens):
        return functional.linear(self.norm(self.hidden(tokens)),
                                 self.head.weight, self.head.bias)

    def forward(self, tokens):
        return functional.cross_entropy(
            self.logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def fill(module):
    """Own parameters and buffers of a module; no state, any order."""
    with torch.no_grad():
        for key, value in sorted(list(module._parameters.items()) +
                                 list(module._buffers.items())):
            if value is None:
                continue
            n = torch.arange(value.numel(), dtype=torch.float64)
            wave = torch.sin(n * 1.7 + len(key) + value.numel())
            if isinstance(module, nn.LayerNorm):
                wave = wave * 0.1 + (key == "weight")
            elif key == "scale":
                wave = torch.full_like(wave, 0.7)
            value.copy_((wave * (1 if key == "scale" else 0.5)
                         ).view(value.shape))


def make(**variant):
    torch.manual_seed(1)
    model = Model(**variant)
    for module in model.modules():
        fill(module)
    return model


def tokens(rank, step, micro=0):
    source = torch.Generator().manual_seed(1000 * rank + 10 * step + micro)
    return torch.randint(0, VOCAB, (1 + (rank + micro) % 3, SEQ + 1),
                         generator=source)


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


class Plain:
    """Every rank's data in one process, without the engine."""

    def __init__(self, size, model, optimizer=None, clip=0.0):
        self.size, self.model, self.clip = size, copy.deepcopy(model), clip
        self.optimizer = optimizer(trainable(self.model)) if optimizer else (
            torch.optim.AdamW(trainable(self.model), lr=LR, betas=BETAS,
                              weight_decay=DECAY))

    def step(self, step, micros=1):
        """Losses [rank][microbatch], and the norm."""
        losses = []
        for rank in range(self.size):
            losses.append([])
            for micro in range(micros):
                loss = self.model(tokens(rank, step, micro))
                (loss / micros / self.size).backward()
                losses[-1].append(loss.item())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(),
                                        self.clip or 1e9)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses, norm.item()


def sharded(context, strategy="fsdp", **options):
    return at.shard(make(), strategy, context, [Block], poison=True,
                    **options)


def step(model, optimizer, rank, number):
    model(tokens(rank, number)).backward()
    optimizer.step()

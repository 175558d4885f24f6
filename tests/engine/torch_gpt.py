"""The model of numpy_gpt as an nn.Module, with the variants that the engine
must take as they are: checkpointing, LoRA, a head tied across units."""

import math

import numpy_gpt as gpt
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(gpt.DIM, dtype=torch.float64))

    def forward(self, x):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + gpt.EPS)
        return x * scale * self.weight


class Linear(nn.Module):
    """y = x W', and with a rank also + x A' B' where W is frozen."""

    def __init__(self, shape, rank=0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.float64))
        if rank > 0:
            self.weight.requires_grad_(False)
            self.down = nn.Parameter(torch.full((rank, shape[1]), 0.03,
                                                dtype=torch.float64))
            self.up = nn.Parameter(torch.zeros(shape[0], rank,
                                               dtype=torch.float64))

    def forward(self, x):
        y = functional.linear(x, self.weight)
        if self.weight.requires_grad:
            return y
        return y + functional.linear(functional.linear(x, self.down), self.up)


def rope(x):
    half = gpt.HEAD // 2
    angle = (torch.arange(x.shape[1], dtype=torch.float64)[:, None] * 10000.0
             ** (-2.0 * torch.arange(half, dtype=torch.float64) / gpt.HEAD))
    c, s = angle.cos()[None, :, None], angle.sin()[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, a * s + b * c], -1)


class Block(nn.Module):
    def __init__(self, rank=0):
        super().__init__()
        for name, shape in gpt.BLOCK:
            setattr(self, name, Norm() if len(shape) == 1
                    else Linear(shape, rank))
        if rank > 0:
            self.norm1.weight.requires_grad_(False)
            self.norm2.weight.requires_grad_(False)

    def forward(self, x):
        n = self.norm1(x)
        shape = (*x.shape[:2], gpt.HEADS, gpt.HEAD)
        q, k = rope(self.wq(n).view(shape)), rope(self.wk(n).view(shape))
        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(gpt.HEAD)
        later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
        a = s.masked_fill(later, -math.inf).softmax(-1)
        o = torch.einsum("bhts,bshd->bthd", a, self.wv(n).view(shape))
        x = x + self.wo(o.reshape(x.shape))
        n = self.norm2(x)
        return x + self.down(functional.silu(self.gate(n)) * self.up(n))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.weight = nn.Parameter(
            torch.empty(gpt.VOCAB, gpt.DIM, dtype=torch.float64))

    def forward(self, x):
        return functional.linear(self.norm(x), self.weight)


class Gpt(nn.Module):
    """how: None, "reentrant" or "graph" (checkpoint of every block).
    tied: the head uses the embedding."""

    def __init__(self, how=None, rank=0, tied=True):
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(gpt.VOCAB, gpt.DIM, dtype=torch.float64)
        self.blocks = nn.ModuleList(Block(rank) for _ in range(gpt.LAYERS))
        self.head = Head()
        if tied:
            self.head.weight = self.embed.weight
        self.fail_in = None
        self.load(gpt.initial())

    def load(self, arrays):
        with torch.no_grad():
            values = [torch.from_numpy(a) for a in arrays[0]]
            self.embed.weight.copy_(values[0])
            self.head.weight.copy_(values[0])
            for block, unit in zip(self.blocks, arrays[1:]):
                for (name, _), value in zip(gpt.BLOCK, unit):
                    getattr(block, name).weight.copy_(torch.from_numpy(value))

    def logits(self, x):
        x = self.embed(x)
        for i, block in enumerate(self.blocks):
            if i == self.fail_in:
                raise ArithmeticError("a bad batch")
            if self.how is None or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant",
                               preserve_rng_state=False)
        return self.head(x)

    def forward(self, tokens):
        tokens = torch.as_tensor(tokens)
        return functional.cross_entropy(
            self.logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def units_with_root(self):
        return [("root", self, True)] + [
            ("block%d" % i, b, False) for i, b in enumerate(self.blocks)]

    def units_flat(self):
        """No root: embedding and head are units of their own."""
        return ([("embed", self.embed, False)] + self.units_with_root()[1:] +
                [("head", self.head, False)])

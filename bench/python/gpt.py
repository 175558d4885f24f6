"""The model of the benchmark: a GPT of 46 M parameters (width 512, 12 layers,
vocabulary 8192), in plain PyTorch."""

import torch
from torch import nn
from torch.nn import functional

VOCAB, DIM, HEADS, LAYERS, SEQ = 8192, 512, 8, 12, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(
            batch, seq, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, DIM))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.place = nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens[:, :-1])
        x = x + self.place.weight[:x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(
            self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def batch(rank: int, count: int) -> torch.Tensor:
    """count tokens per rank, in sequences of at most SEQ; ranks differ."""
    source = torch.Generator().manual_seed(rank)
    seq = min(count, SEQ)
    return torch.randint(0, VOCAB, (count // seq, seq + 1), generator=source)

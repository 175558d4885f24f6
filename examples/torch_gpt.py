#!/usr/bin/env python3
"""A small GPT in plain PyTorch on real text, byte by byte, made parallel by an
import and two lines: they end with "# aliquot".  Others only ask which rank this
is, for its batches and for what it prints.

    python examples/torch_gpt.py                          # one process
    aliquot run -n 4 -- python examples/torch_gpt.py      # four
    torchrun --nproc-per-node 4 examples/torch_gpt.py     # the same

Trains on the sources of Python's standard library, or on the files and folders
given with --data.  At the end it prints the loss on text it has not seen, in
nats per byte, beside the unigram entropy of that text: what one would reach by
counting bytes.
"""

import argparse
import math
import os
import pathlib
import sys
import sysconfig
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
try:
    import aliquot.torch as at                                      # aliquot
except ImportError:  # not installed: the package of this source tree
    sys.path.insert(0, str(ROOT / "bindings" / "python"))
    import aliquot.torch as at

import torch
from torch import nn
from torch.nn import functional

TRAIN_PART = 0.9


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(
            batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, dim, layers, heads, length):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.place = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 256, bias=False)
        self.head.weight = self.embed.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text):
        """Mean loss of predicting each byte from those before it."""
        x = self.embed(text[:, :-1])
        x = x + self.place.weight[:x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(
            self.head(self.norm(x)).flatten(0, 1), text[:, 1:].flatten())


def read_text(names, most):
    """(training text, held-out text), as bytes in tensors."""
    parts, size = [], 0
    for name in names or [sysconfig.get_path("stdlib")]:
        path = pathlib.Path(name)
        files = [path] if path.is_file() else sorted(path.glob("*.py")) or (
            sorted(p for p in path.rglob("*") if p.is_file()))
        if not files:
            sys.exit(f"--data {name}: no files there")
        for file in files:
            if size < most:
                parts.append(file.read_bytes()[:most - size])
                size += len(parts[-1])
    text = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    cut = int(len(text) * TRAIN_PART)
    return text[:cut], text[cut:]


def batch_of(text, args, source):
    if len(text) <= args.length:
        sys.exit(f"--data: {len(text)} bytes are too few for --length "
                 f"{args.length}")
    begins = torch.randint(len(text) - args.length, (args.batch,),
                           generator=source)
    return torch.stack([text[b:b + args.length + 1] for b in begins]).long()


def unigram_entropy(text):
    part = torch.bincount(text.int(), minlength=256).double() / len(text)
    return -(part * part.clamp_min(1e-300).log()).sum().item()


class Bar:
    """Progress on stderr: drawn in place on a terminal, else a line every
    tenth."""

    def __init__(self, total, quiet):
        self.total, self.quiet = total, quiet
        self.started, self.tenth = time.monotonic(), -1
        self.inline = sys.stderr.isatty()

    def show(self, step, loss):
        tenth = 10 * step // self.total
        if self.quiet or not (self.inline or tenth > self.tenth):
            return
        self.tenth = tenth
        spent = time.monotonic() - self.started
        left = spent / step * (self.total - step)
        done = "#" * (30 * step // self.total)
        sys.stderr.write(
            f"{chr(13) if self.inline else ''}[{done:<30}] "
            f"{step}/{self.total}  loss {loss:.3f}  {left:3.0f} s left"
            f"{'' if self.inline and step < self.total else chr(10)}")
        sys.stderr.flush()


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--data", nargs="*", default=[], help="text files or folders; none: "
        "Python's standard library")
    add("--max-bytes", type=int, default=4 << 20, help="of text")
    add("--strategy", default="fsdp",
        choices=("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"),
        help="what the ranks share out")
    add("--mesh", help="e.g. dp_replicate=2,dp_shard=2; none: all ranks shard")
    add("--steps", type=int, default=200, help="optimizer steps")
    add("--batch", type=int, default=8, help="texts per rank and step")
    add("--length", type=int, default=128, help="bytes per text")
    add("--dim", type=int, default=128, help="width")
    add("--layers", type=int, default=4, help="blocks")
    add("--heads", type=int, default=4, help="attention, a divisor of --dim")
    add("--lr", type=float, default=2e-3, help="peak learning rate")
    add("--eval-batches", type=int, default=16,
        help="batches of text not seen, at the end")
    add("--seed", type=int, default=1, help="of weights and batches")
    args = parser.parse_args()
    if args.dim % args.heads or args.steps < 1:
        parser.error("--dim is a multiple of --heads, and --steps is positive")
    return args


def main():
    args = parse()
    context = at.default_context()
    # The ranks of a host share its cores.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // context.size))
    torch.manual_seed(args.seed)
    train, held_out = read_text(args.data, args.max_bytes)

    model = GPT(args.dim, args.layers, args.heads, args.length)
    size = sum(p.numel() for p in model.parameters())
    model = at.shard(model, args.strategy, args.mesh, [Block])      # aliquot
    optimizer = at.AdamW(model.parameters(), lr=args.lr)            # aliquot
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 0.55 + 0.45 * math.cos(
            math.pi * step / args.steps)))

    if context.rank == 0:
        print(f"{size / 1e6:.2f} M parameters, {len(train)} bytes of text, "
              f"{context.size} rank(s), {args.strategy}", flush=True)
    source = torch.Generator().manual_seed(1000 * args.seed + context.rank)
    bar = Bar(args.steps, context.rank != 0)
    for step in range(1, args.steps + 1):
        loss = model(batch_of(train, args, source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        bar.show(step, loss.item())

    model.eval()
    with torch.no_grad():
        loss = torch.stack([model(batch_of(held_out, args, source))
                            for _ in range(args.eval_batches)]).mean()
    context.world.all_reduce(loss, op="avg")
    if context.rank == 0:
        entropy = unigram_entropy(held_out)
        print(f"loss {loss.item():.3f} nats per byte on text not seen, "
              f"unigram entropy {entropy:.3f}")
        if loss > entropy:
            print("it knows less than the frequency of each byte so far: "
                  f"give it more than {args.steps} --steps")


if __name__ == "__main__":
    main()

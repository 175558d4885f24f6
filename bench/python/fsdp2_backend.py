"""torch's FSDP2 on the backend aliquot against gloo: seconds per step.

    python bench/python/fsdp2_backend.py [--ranks 2] [--tokens 64] [--pairs 40]
                                         [--report docs/reports/distributed.md]

One GPT of about 50 M parameters per backend in the same processes, one thread
per rank, f32, AdamW fused.  The two take turns step by step, and which goes
first alternates, so that whatever else the machine does meets both alike; the
ratio of a pair is formed before the median.  A pair's time is that of its
slowest rank.  "aliquot, lent" has FSDP2 allocate its communication buffers from
the process group (set_allocate_memory_from_process_group_for_comm).
"""

import argparse
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))

TARGET = 0.75
LIMIT_S = 1800


def make_model(args):
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, width = x.shape
            q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                       for t in self.qkv(self.norm1(x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(args.vocabulary, args.width)
            self.places = nn.Embedding(args.tokens, args.width)
            self.blocks = nn.ModuleList(
                Block(args.width, args.width // 64)
                for _ in range(args.layers))
            self.norm = nn.LayerNorm(args.width)
            self.head = nn.Linear(args.width, args.vocabulary, bias=False)

        def forward(self, tokens, targets):
            x = self.tokens(tokens) + self.places.weight[:tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    torch.manual_seed(0)
    return Gpt()


class Trainer:
    def __init__(self, args, mesh, lent=False):
        import torch
        from torch.distributed.fsdp import fully_shard
        self.torch = torch
        self.model = make_model(args)
        units = list(self.model.blocks) + [self.model]
        for unit in units:
            fully_shard(unit, mesh=mesh)
        if lent:
            for unit in units:
                unit.set_allocate_memory_from_process_group_for_comm(True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3,
                                           fused=True)

    def step(self, tokens, targets):
        loss = self.model(tokens, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def rank_main(args):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    import aliquot.torch  # noqa: F401  (registers the backend)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {"gloo": dist.group.WORLD,
              "aliquot": dist.new_group(backend="aliquot")}
    trainers = {name: Trainer(args, DeviceMesh.from_group(group, "cpu"))
                for name, group in groups.items()}
    trainers["aliquot, lent"] = Trainer(
        args, DeviceMesh.from_group(groups["aliquot"], "cpu"), lent=True)
    names = list(trainers)
    data = torch.Generator().manual_seed(100 + rank)
    times, losses = [], []
    for pair in range(args.pairs + args.warm_up):
        ids = torch.randint(args.vocabulary, (1, args.tokens + 1),
                            generator=data)
        turn, loss = {}, {}
        for name in names[pair % 3:] + names[:pair % 3]:
            dist.barrier()
            begun = time.perf_counter()
            loss[name] = trainers[name].step(ids[:, :-1], ids[:, 1:])
            turn[name] = time.perf_counter() - begun
        if pair >= args.warm_up:
            times.append([turn[name] for name in names])
        losses.append([loss[name] for name in names])
    slowest = torch.tensor(times)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        parameters = sum(p.numel() for p in make_model(args).parameters())
        with open(args.out, "w") as out:
            json.dump({"names": names, "times": slowest.tolist(),
                       "losses": losses, "parameters": parameters,
                       "ranks": size}, out)
    dist.barrier()
    dist.destroy_process_group()


def quantile(values, q):
    values = sorted(values)
    return values[min(int(q * len(values)), len(values) - 1)]


def summary(result):
    names, gloo = result["names"], [row[0] for row in result["times"]]
    lines = []
    for i, name in enumerate(names):
        column = [row[i] for row in result["times"]]
        ratios = [mine / theirs for mine, theirs in zip(column, gloo)]
        lines.append((name, statistics.median(column),
                      statistics.median(ratios), quantile(ratios, .1),
                      quantile(ratios, .9)))
    return lines


def facts():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file
                 if line.startswith("model name")]
    yield "date", datetime.date.today().isoformat()
    yield "processor", (names + [platform.machine()])[0]
    yield "cores", len(os.sched_getaffinity(0))
    yield "kernel", platform.release().split("-")[0]
    yield "load", "%.2f over 15 minutes" % os.getloadavg()[2]
    yield "source", subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"],
        capture_output=True, text=True).stdout.strip() or "unknown"


def report(args, result):
    import torch
    lines = summary(result)
    equal = [row for row in result["losses"] if len(set(row)) == 1]
    text = ["# torch.distributed backend", "",
            "Written by `bench/python/fsdp2_backend.py`. Times depend on the "
            "machine; on a busy one only the ratios mean something.", "",
            "| fact | |", "|---|---|",
            *("| %s | %s |" % fact for fact in facts()), "",
            "torch %s FSDP2, GPT of %.1f M parameters (width %d, %d layers, "
            "vocabulary %d), f32, fused AdamW, one thread per rank, %d ranks "
            "on %d cores, %d tokens per rank, %d interleaved turns." % (
                torch.__version__, result["parameters"] / 1e6, args.width,
                args.layers, args.vocabulary, result["ranks"],
                len(os.sched_getaffinity(0)), args.tokens, args.pairs), "",
            "| backend | step, median, ms | step / gloo, median of pairs | "
            "10-90 % of pairs |", "|---|---|---|---|"]
    for name, median, ratio, low, high in lines:
        text.append("| %s | %.0f | %.2f | %.2f-%.2f |" % (
            name, median * 1e3, ratio, low, high))
    ours = lines[result["names"].index("aliquot")][2]
    text += ["", "Target at 2 ranks and 64 tokens: at most %.2f of gloo's "
             "step: %s (%.2f)." % (TARGET, "reached" if ours <= TARGET
                                   else "missed", ours), "",
             "Losses equal bit for bit on all backends in %d of %d steps." % (
                 len(equal), len(result["losses"])), ""]
    return "\n".join(text)


def launch(args, out):
    """The ranks as processes of their own; ended with this one."""
    with tempfile.TemporaryDirectory() as folder:
        place = dict(WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1",
                     OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place["MASTER_PORT"] = str(probe.getsockname()[1])
        command = [sys.executable, "-B", os.path.abspath(__file__),
                   "--as-rank", "--out", out]
        for name in ("tokens", "pairs", "warm_up", "width", "layers",
                     "vocabulary"):
            command += ["--" + name.replace("_", "-"),
                        str(getattr(args, name))]
        ranks = [subprocess.Popen(command, cwd=folder, env={
            **os.environ, **place, "RANK": str(r), "LOCAL_RANK": str(r)})
            for r in range(args.ranks)]
        try:
            for process in ranks:
                if process.wait(LIMIT_S) != 0:
                    raise SystemExit("a rank failed")
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--report", help="where to write the report")
    parser.add_argument("--as-rank", action="store_true",
                        help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        rank_main(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "result.json")
        launch(args, out)
        with open(out) as file:
            text = report(args, json.load(file))
    print(text)
    if args.report:
        with open(args.report, "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()

"""torch's own parallelism on the backend aliquot: DDP and FSDP2 against gloo
and against plain training, tensor parallelism, pipelines and checkpoints."""

import os
import tempfile
import warnings

import distributed_ranks

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

WIDTH, CLASSES, STEPS, BATCH = 24, 7, 5, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make(dtype=torch.float32):
    torch.manual_seed(5)
    return Net().to(dtype)


def batch(rank, step):
    data = torch.Generator().manual_seed(1000 * rank + step)
    ids = torch.randint(CLASSES, (2, BATCH), generator=data)
    return ids[0], ids[1]


def losses_of(model, rank, scale=1.0):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        ids, targets = batch(rank, step)
        loss = F.cross_entropy(model(ids), targets)
        (loss * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    return torch.stack(losses)


def plain_losses(size, dtype):
    """One model, the mean gradient of all ranks' batches: [step][rank]."""
    model = make(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = []
    for step in range(STEPS):
        row = []
        for rank in range(size):
            ids, targets = batch(rank, step)
            loss = F.cross_entropy(model(ids), targets)
            (loss / size).backward()
            row.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        rows.append(row)
    return rows


_gloo = []


def gloo():
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


def compare(world, train):
    """train(group, dtype) on both backends; f32 equal bit for bit where the sum
    has one order, f64 close to training on one process."""
    ours, theirs = (train(g, torch.float32)
                    for g in (dist.group.WORLD, gloo()))
    if world.size == 2:
        assert torch.equal(ours, theirs), (ours, theirs)
    else:
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5), (ours, theirs)
    want = [row[world.rank] for row in plain_losses(world.size,
                                                    torch.float64)]
    got = train(dist.group.WORLD, torch.float64)
    worst = max(abs(a - b) for a, b in zip(got.tolist(), want))
    assert worst < 1e-12, worst


def check_ddp(world):
    def train(group, dtype, **options):
        model = nn.parallel.DistributedDataParallel(
            make(dtype), process_group=group, **options)
        return losses_of(model, world.rank)

    compare(world, train)
    # Many buckets, each a collective that runs while backward goes on.
    compare(world, lambda g, d: train(g, d, bucket_cap_mb=0.002))
    compare(world, lambda g, d: train(g, d, gradient_as_bucket_view=True,
                                      static_graph=True))


def check_ddp_with_a_communication_hook(world):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    model = nn.parallel.DistributedDataParallel(make())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    losses = losses_of(model, world.rank)
    plain = [row[world.rank] for row in plain_losses(world.size,
                                                     torch.float32)]
    assert (losses - torch.tensor(plain)).abs().max() < 0.05


def check_fsdp2(world):
    from torch.distributed.fsdp import fully_shard

    def train(group, dtype, reshard=True):
        model, mesh = make(dtype), DeviceMesh.from_group(group, "cpu")
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh)
        return losses_of(model, world.rank)

    compare(world, train)
    compare(world, lambda g, d: train(g, d, False))


def check_fsdp2_in_lent_memory(world):
    from torch.distributed.fsdp import fully_shard

    def train(lent):
        model = make()
        units = list(model.blocks) + [model]
        for unit in units:
            fully_shard(unit, mesh=init_device_mesh("cpu", (world.size,)))
        for unit in units if lent else ():
            unit.set_allocate_memory_from_process_group_for_comm(True)
        return losses_of(model, world.rank)

    assert torch.equal(train(False), train(True))


def check_fsdp2_mixed_precision_and_clipping(world):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    norms = []
    for group in (dist.group.WORLD, gloo()):
        model, mesh = make(), DeviceMesh.from_group(group, "cpu")
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                      reduce_dtype=torch.float32)
        for unit in list(model.blocks) + [model]:
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        ids, targets = batch(world.rank, 0)
        F.cross_entropy(model(ids).float(), targets).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norms.append(norm.full_tensor().item())
    assert abs(norms[0] - norms[1]) < 1e-5 * norms[1], norms


def check_hsdp(world):
    if world.size != 4:
        return
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
    model = make(torch.float64)
    for unit in list(model.blocks) + [model]:
        fully_shard(unit, mesh=mesh)
    losses = losses_of(model, world.rank)
    want = [row[world.rank] for row in plain_losses(4, torch.float64)]
    worst = max(abs(a - b) for a, b in zip(losses.tolist(), want))
    assert worst < 1e-12, worst


def check_tensor_parallel(world):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module)
    mesh = init_device_mesh("cpu", (world.size,))
    plain, model = make(torch.float64), make(torch.float64)
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(),
                                         "down": RowwiseParallel()})
    for step in range(2):
        ids, targets = batch(0, step)  # the same on all ranks
        grads = []
        for each in (plain, model):
            each.zero_grad()
            out = each(ids)
            F.cross_entropy(out, targets).backward()
            grads.append([out] + [
                p.grad.full_tensor() if hasattr(p.grad, "full_tensor")
                else p.grad for p in each.parameters()])
        for mine, theirs in zip(*grads):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


def check_dtensor_redistribution(world):
    from torch.distributed.tensor import (Partial, Replicate, Shard,
                                          distribute_tensor, DTensor)
    mesh = init_device_mesh("cpu", (world.size,))
    whole = torch.arange(42.0).view(6, 7)
    rows = distribute_tensor(whole.clone(), mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.full_tensor(), whole)
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(),
                       whole)
    part = DTensor.from_local(whole * (world.rank + 1), mesh, [Partial()])
    total = whole * sum(range(1, world.size + 1))
    assert torch.equal(part.full_tensor(), total)
    assert torch.equal(part.redistribute(mesh, [Shard(0)]).full_tensor(),
                       total)


def check_checkpoint(world):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (get_state_dict,
                                                         set_state_dict)
    from torch.distributed.fsdp import fully_shard

    def sharded(seed):
        torch.manual_seed(seed)
        model = Net()
        for unit in list(model.blocks) + [model]:
            fully_shard(unit, mesh=init_device_mesh("cpu", (world.size,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ids, targets = batch(world.rank, seed)
        F.cross_entropy(model(ids), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        return model, optimizer

    place = [tempfile.mkdtemp(prefix="aliquot-test-") if world.rank == 0
             else None]
    dist.broadcast_object_list(place, 0)
    try:
        saved, loaded = sharded(1), sharded(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = dict(zip(("model", "optim"), get_state_dict(*saved)))
            dcp.save(state, checkpoint_id=place[0])
            other = dict(zip(("model", "optim"), get_state_dict(*loaded)))
            dcp.load(other, checkpoint_id=place[0])
            set_state_dict(*loaded, model_state_dict=other["model"],
                           optim_state_dict=other["optim"])
            dcp.async_save(state, checkpoint_id=os.path.join(
                place[0], "later")).result(60)
        for a, b in zip(saved[0].parameters(), loaded[0].parameters()):
            assert torch.equal(a.to_local(), b.to_local())
            assert torch.equal(
                saved[1].state[a]["exp_avg"].to_local(),
                loaded[1].state[b]["exp_avg"].to_local())
    finally:
        dist.barrier()
        if world.rank == 0:
            import shutil
            shutil.rmtree(place[0])


def check_pipeline(world):
    from torch.distributed.pipelining import (PipelineStage, Schedule1F1B,
                                              ScheduleGPipe)
    for kind in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(3)
        stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
                  .double() for _ in range(world.size)]
        generator = torch.Generator().manual_seed(9)
        x, y = (torch.randn(8, WIDTH, generator=generator,
                            dtype=torch.float64) for _ in range(2))
        nn.functional.mse_loss(nn.Sequential(*stages)(x), y).backward()
        want = [p.grad.clone() for p in stages[world.rank].parameters()]
        stages[world.rank].zero_grad()
        schedule = kind(PipelineStage(
            stages[world.rank], world.rank, world.size, torch.device("cpu")),
            n_microbatches=4, loss_fn=nn.functional.mse_loss)
        losses = []
        if world.rank == 0:
            schedule.step(x)
        elif world.rank == world.size - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        for mine, p in zip(want, stages[world.rank].parameters()):
            assert torch.allclose(p.grad, mine, rtol=0, atol=1e-13)


def check_zero_redundancy_optimizer(world):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = nn.parallel.DistributedDataParallel(make())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    ids, targets = batch(world.rank, 0)
    F.cross_entropy(model(ids), targets).backward()
    optimizer.step()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    all_weights = [torch.empty_like(weights) for _ in range(world.size)]
    dist.all_gather(all_weights, weights)
    assert all(torch.equal(w, weights) for w in all_weights)


if __name__ == "__main__":
    distributed_ranks.main(globals(), sizes=(2, 4))

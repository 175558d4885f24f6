"""Asynchronous operations, messages, objects, functional collectives and what
the backend aliquot refuses."""

from datetime import timedelta

import distributed_ranks
from distributed_values import (LENGTHS, MOVED, refused, same, subgroup,
                                values)

import torch
import torch.distributed as dist

from aliquot import Unsupported


def check_many_asynchronous_operations_finish_in_any_order(world):
    tensors = [values(world.rank, 100 + i, torch.float32) for i in range(40)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    sync = values(world.rank, 9, torch.float32)
    dist.all_reduce(sync)  # behind the others, by program order
    for work in reversed(works):
        work.wait()
    for i, t in enumerate(tensors):
        same(t, sum(values(r, 100 + i, torch.float32)
                    for r in range(world.size)))
    same(sync, sum(values(r, 9, torch.float32) for r in range(world.size)))


def check_works_that_nobody_waits_for(world):
    for i in range(20):
        x = values(world.rank, 5000, torch.float32)
        dist.all_reduce(x, async_op=True)
        del x
    dist.barrier()


def check_futures_run_their_callbacks(world):
    x = values(world.rank, 3000, torch.float32)
    future = dist.all_reduce(x, async_op=True).get_future().then(
        lambda f: f.value()[0] / world.size)
    same(future.wait(), sum(values(r, 3000, torch.float32)
                            for r in range(world.size)) / world.size)


def check_a_rank_that_waits_elsewhere_helps_its_peers(world):
    """Rank 0 waits in the store for what rank 1 does after an operation that
    rank 0 has issued and not waited for."""
    store = dist.distributed_c10d._get_default_store()
    x = values(world.rank, 200000, torch.float32)
    work = dist.all_reduce(x, async_op=True)
    if world.rank == 0:
        store.wait(["check/elsewhere"])
    else:
        work.wait()
        store.set("check/elsewhere", "1")
    work.wait()


def check_operations_of_two_groups_waited_for_crosswise(world):
    other = dist.new_group()
    for _ in range(10):
        x, y = (values(world.rank, 300000, torch.float32, s) for s in (0, 1))
        works = [dist.all_reduce(x, async_op=True),
                 dist.all_reduce(y, group=other, async_op=True)]
        for work in works if world.rank % 2 else reversed(works):
            work.wait()
    same(y, sum(values(r, 300000, torch.float32, 1)
                for r in range(world.size)))
    dist.destroy_process_group(other)


def check_send_and_receive(world):
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for dtype in MOVED:
        for length in LENGTHS:
            out = torch.empty(length, dtype=dtype)
            sent = dist.isend(values(world.rank, length, dtype), right)
            assert dist.recv(out, left) == left
            sent.wait()
            same(out, values(left, length, dtype))
    if world.rank == 0:
        dist.send(torch.full((3, 3), 7.0).t(), 1, tag=5)
    if world.rank == 1:
        wide = torch.zeros(3, 6)
        dist.recv(wide[:, ::2], 0, tag=5)
        assert torch.equal(wide[:, ::2], torch.full((3, 3), 7.0))
        assert wide[:, 1::2].sum() == 0


def check_receives_posted_first_hold_back_no_sends(world):
    peers = [r for r in range(world.size) if r != world.rank]
    outs = [torch.empty(50000) for _ in peers]
    works = [dist.irecv(out, peer) for out, peer in zip(outs, peers)]
    works += [dist.isend(values(world.rank, 50000, torch.float32, peer), peer)
              for peer in peers]
    for work in works:
        work.wait()
    for peer, out in zip(peers, outs):
        same(out, values(peer, 50000, torch.float32, world.rank))


def check_batch_of_sends_and_receives(world):
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    out = torch.empty(100)
    batch = [dist.P2POp(dist.irecv, out, left),
             dist.P2POp(dist.isend, values(world.rank, 100, torch.float32),
                        right)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(out, values(left, 100, torch.float32))


def check_messages_in_a_subgroup(world):
    ranks = (0, world.size - 1)
    group = subgroup(world, ranks)
    if world.rank == ranks[0]:
        dist.send(torch.tensor([4.0]), ranks[1], group=group)
    elif world.rank == ranks[1]:
        out = torch.zeros(1)
        dist.recv(out, ranks[0], group=group)
        assert out.item() == 4


def check_objects(world):
    everyone = [None] * world.size
    dist.all_gather_object(everyone, {"rank": world.rank})
    assert everyone == [{"rank": r} for r in range(world.size)]
    one = [world.rank, "x" * (world.rank + 1)]
    dist.broadcast_object_list(one, 1)
    assert one == [1, "xx"]
    gathered = [None] * world.size if world.rank == 0 else None
    dist.gather_object(("r", world.rank), gathered, 0)
    if world.rank == 0:
        assert gathered == [("r", r) for r in range(world.size)]
    mine = [None]
    dist.scatter_object_list(
        mine, [r * 10 for r in range(world.size)] if world.rank == 0 else None,
        0)
    assert mine == [world.rank * 10]


def check_barriers(world):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(timeout=timedelta(seconds=30))


def check_functional_collectives(world):
    import torch.distributed._functional_collectives as funcol
    x = values(world.rank, 12, torch.float32)
    total = sum(values(r, 12, torch.float32) for r in range(world.size))
    group = dist.group.WORLD
    same(funcol.all_reduce(x, "sum", group).wait(), total)
    same(funcol.all_gather_tensor(x, 0, group).wait(), torch.cat(
        [values(r, 12, torch.float32) for r in range(world.size)]))
    same(funcol.reduce_scatter_tensor(x, "avg", 0, group).wait(),
         (total * (1 / world.size)).chunk(world.size)[world.rank])
    same(funcol.broadcast(x, 1, group).wait(), values(1, 12, torch.float32))
    n = 12 // world.size
    same(funcol.all_to_all_single(x, None, None, group).wait(), torch.cat(
        [values(r, 12, torch.float32)[n * world.rank:n * world.rank + n]
         for r in range(world.size)]))
    y, z = funcol.all_reduce_coalesced([x, x + 1], "sum", group)
    same(y.wait(), total)
    same(z.wait(), total + world.size)


def check_tensors_lent_by_the_group(world):
    group = dist.group.WORLD
    for _ in range(3):
        out = group.allocate_tensor((world.size, 5), dtype=torch.float32,
                                    device=torch.device("cpu"))
        mine = group.allocate_tensor(5, dtype=torch.float32)
        mine.copy_(values(world.rank, 5, torch.float32))
        dist.all_gather_into_tensor(out.view(-1), mine)
        same(out, torch.stack([values(r, 5, torch.float32)
                               for r in range(world.size)]))
        address = mine.data_ptr()
        del mine
        again = group.allocate_tensor(4, dtype=torch.float32)
        assert again.data_ptr() == address
        del again


def check_what_is_refused_and_that_the_group_lives_on(world):
    x = torch.ones(4)
    for op in ("PRODUCT", "BAND", "BOR", "BXOR"):
        for kind in (NotImplementedError, Unsupported, dist.DistBackendError):
            refused(kind, op, dist.all_reduce, torch.ones(4, dtype=torch.int32),
                    getattr(dist.ReduceOp, op))
    refused(NotImplementedError, "to_dense", dist.all_reduce,
            torch.eye(3).to_sparse())
    refused(NotImplementedError, "meta", dist.all_reduce,
            torch.ones(4, device="meta"))
    refused(NotImplementedError, "float8_e8m0fnu", dist.broadcast,
            torch.empty(4, dtype=torch.float8_e8m0fnu), 0)
    refused(NotImplementedError, "src", dist.recv, x)
    refused(ValueError, "elements", dist.all_gather_into_tensor,
            torch.empty(3), x)
    refused(ValueError, "split sizes", dist.all_to_all_single, x, x.clone(),
            [1] * world.size, [3] * world.size)
    refused(RuntimeError, "f8e4m3", dist.all_reduce,
            torch.ones(4).to(torch.float8_e4m3fn))
    dist.all_reduce(x)
    assert x[0] == world.size


def check_split_group(world):
    halves = [[r for r in range(world.size) if r % 2 == k] for k in (0, 1)]
    group = dist.split_group(split_ranks=halves)
    x = torch.tensor([float(world.rank)])
    dist.all_reduce(x, group=group)
    assert x.item() == sum(halves[world.rank % 2])
    dist.destroy_process_group(group)


if __name__ == "__main__":
    distributed_ranks.main(globals(), sizes=(2, 4))

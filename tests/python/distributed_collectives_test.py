"""Every collective of torch.distributed on the backend aliquot, against what
the test computes itself: types, in place, asynchronous, subgroups, lists, odd
memory layouts, empty tensors."""

import warnings

import distributed_ranks
from distributed_values import (FLOATS, INTS, LENGTHS, MOVED, finish, ops_of,
                                reference, same, values, ways)

import torch
import torch.distributed as dist


def check_all_reduce(world):
    for group, ranks, me, later in ways(world):
        for dtype in FLOATS + INTS:
            for op in ops_of(dtype):
                for length in LENGTHS:
                    x = values(ranks[me], length, dtype)
                    finish(dist.all_reduce(x, getattr(dist.ReduceOp, op),
                                           group, later))
                    same(x, reference(op, [values(r, length, dtype)
                                           for r in ranks]), (dtype, op))


def check_all_reduce_of_random_numbers_is_the_sum_in_rank_order(world):
    def part(rank):
        return torch.randn(33333, generator=torch.Generator().manual_seed(rank))
    x = part(world.rank)
    dist.all_reduce(x)
    same(x, reference("SUM", [part(r) for r in range(world.size)]))


def check_all_reduce_of_bool_is_or_and_and(world):
    for op, fold in (("SUM", torch.any), ("MAX", torch.any),
                     ("BOR", torch.any), ("MIN", torch.all),
                     ("BAND", torch.all)):
        parts = [values(r, 100, torch.bool) for r in range(world.size)]
        x = parts[world.rank].clone()
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        same(x, fold(torch.stack(parts), 0))


def check_all_reduce_of_complex(world):
    x = values(world.rank, 50, torch.complex64)
    dist.all_reduce(x)
    assert torch.equal(x, sum(values(r, 50, torch.complex64)
                              for r in range(world.size)))


def check_scaled_sum(world):
    op = dist._make_nccl_premul_sum(0.5 + world.rank)
    x = values(world.rank, 100, torch.float32)
    dist.all_reduce(x, op)
    same(x, sum((0.5 + r) * values(r, 100, torch.float32)
                for r in range(world.size)))
    out = torch.empty(10)
    dist.reduce_scatter_tensor(
        out, values(world.rank, 10 * world.size, torch.float32), op)
    whole = sum((0.5 + r) * values(r, 10 * world.size, torch.float32)
                for r in range(world.size))
    same(out, whole.chunk(world.size)[world.rank])
    inputs = list(values(world.rank, 10 * world.size,
                         torch.float32).chunk(world.size))
    dist.reduce_scatter(out, inputs, op)
    same(out, whole.chunk(world.size)[world.rank])


def check_all_reduce_coalesced(world):
    lengths = (3, 0, 500)
    for later in (False, True):
        parts = [values(world.rank, n, torch.float64, n) for n in lengths]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = dist.all_reduce_coalesced(parts, async_op=later)
        if later:
            work.wait()
        for n, x in zip(lengths, parts):
            same(x, sum(values(r, n, torch.float64, n)
                        for r in range(world.size)))


def check_coalescing_manager(world):
    x, y = (values(world.rank, n, torch.float32) for n in (10, 20))
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(x)
        dist.all_reduce(y)
    manager.wait()
    for got in (x, y):
        same(got, sum(values(r, len(got), torch.float32)
                      for r in range(world.size)))
    outs = [torch.empty(5 * world.size), torch.empty(3 * world.size)]
    with dist.distributed_c10d._coalescing_manager(
            device=torch.device("cpu")):
        for out in outs:
            dist.all_gather_into_tensor(
                out, values(world.rank, len(out) // world.size,
                            torch.float32))
    for out in outs:
        same(out, torch.cat([values(r, len(out) // world.size, torch.float32)
                             for r in range(world.size)]))


def check_broadcast(world):
    for group, ranks, me, later in ways(world):
        for dtype in MOVED:
            for length in LENGTHS:
                for root in (ranks[0], ranks[-1]):
                    x = values(ranks[me], length, dtype)
                    finish(dist.broadcast(x, root, group, later))
                    same(x, values(root, length, dtype))


def check_reduce(world):
    for group, ranks, me, later in ways(world):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for op in ops_of(dtype):
                for root in (ranks[0], ranks[-1]):
                    x = values(ranks[me], 777, dtype)
                    finish(dist.reduce(x, root, getattr(dist.ReduceOp, op),
                                       group, later))
                    if ranks[me] == root:
                        same(x, reference(op, [values(r, 777, dtype)
                                               for r in ranks]))


def check_all_gather_single(world):
    for group, ranks, me, later in ways(world):
        for dtype in MOVED:
            for length in LENGTHS:
                out = torch.empty(len(ranks) * length, dtype=dtype)
                want = torch.cat([values(r, length, dtype) for r in ranks])
                finish(dist.all_gather_into_tensor(
                    out, values(ranks[me], length, dtype), group, later))
                same(out, want)
                part = out[me * length:(me + 1) * length]
                out.view(torch.uint8).fill_(0)
                part.copy_(values(ranks[me], length, dtype))
                finish(dist.all_gather_into_tensor(out, part, group, later))
                same(out, want, "in place")


def check_all_gather_list(world):
    for group, ranks, me, later in ways(world):
        for dtype in MOVED:
            outs = [torch.empty(5, 3, dtype=dtype) for _ in ranks]
            finish(dist.all_gather(
                outs, values(ranks[me], 15, dtype).view(5, 3), group, later))
            for r, out in zip(ranks, outs):
                same(out, values(r, 15, dtype).view(5, 3))
        whole = torch.empty(len(ranks) * 8)
        finish(dist.all_gather(list(whole.chunk(len(ranks))),
                               values(ranks[me], 8, torch.float32), group,
                               later))
        same(whole, torch.cat([values(r, 8, torch.float32) for r in ranks]))


def check_all_gather_of_uneven_lists(world):
    for group, ranks, me, later in ways(world):
        outs = [torch.empty(3 * r) for r in ranks]
        finish(dist.all_gather(
            outs, values(ranks[me], 3 * ranks[me], torch.float32), group,
            later))
        for r, out in zip(ranks, outs):
            same(out, values(r, 3 * r, torch.float32))


def check_all_gather_coalesced(world):
    outs = [[torch.empty(4), torch.empty(2, 2)] for _ in range(world.size)]
    mine = [values(world.rank, 4, torch.float32),
            values(world.rank, 4, torch.float32, 5).view(2, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_gather_coalesced(outs, mine)
    for r in range(world.size):
        same(outs[r][0], values(r, 4, torch.float32))
        same(outs[r][1], values(r, 4, torch.float32, 5).view(2, 2))


def check_reduce_scatter_single(world):
    for group, ranks, me, later in ways(world):
        size = len(ranks)
        for dtype in FLOATS + INTS:
            for op in ops_of(dtype):
                for length in (0, 1, 1000):
                    want = reference(op, [values(r, size * length, dtype)
                                          for r in ranks]).chunk(size)[me] \
                        if length else torch.empty(0, dtype=dtype)
                    whole = values(ranks[me], size * length, dtype)
                    out = torch.empty(length, dtype=dtype)
                    finish(dist.reduce_scatter_tensor(
                        out, whole, getattr(dist.ReduceOp, op), group, later))
                    same(out, want, (dtype, op))
                    part = whole[me * length:(me + 1) * length]
                    finish(dist.reduce_scatter_tensor(
                        part, whole, getattr(dist.ReduceOp, op), group, later))
                    same(part, want, "in place")


def check_reduce_scatter_list(world):
    for group, ranks, me, later in ways(world):
        for counts in ([4] * len(ranks), [2 + r for r in ranks]):
            def inputs(rank):
                return [values(rank, n, torch.float32, i)
                        for i, n in enumerate(counts)]
            out = torch.empty(counts[me])
            finish(dist.reduce_scatter(out, inputs(ranks[me]), group=group,
                                       async_op=later))
            same(out, sum(inputs(r)[me] for r in ranks))


def check_reduce_scatter_coalesced(world):
    outs = [torch.empty(3), torch.empty(4)]
    with dist.distributed_c10d._coalescing_manager():
        for out in outs:
            dist.reduce_scatter_tensor(
                out, values(world.rank, world.size * len(out), torch.float32))
    for out in outs:
        n = len(out)
        whole = sum(values(r, world.size * n, torch.float32)
                    for r in range(world.size))
        same(out, whole[world.rank * n:(world.rank + 1) * n])


def check_gather(world):
    for group, ranks, me, later in ways(world):
        for dtype in MOVED:
            root = ranks[-1]
            outs = [torch.empty(2, 3, dtype=dtype) for _ in ranks] \
                if ranks[me] == root else None
            finish(dist.gather(values(ranks[me], 6, dtype).view(2, 3), outs,
                               root, group, later))
            for r, out in zip(ranks, outs or []):
                same(out, values(r, 6, dtype).view(2, 3))


def check_gather_into_one_tensor(world):
    if not hasattr(dist, "gather_single"):
        return
    out = torch.empty(world.size * 4) if world.rank == 0 else None
    dist.gather_single(values(world.rank, 4, torch.float32), out, 0)
    if world.rank == 0:
        same(out, torch.cat([values(r, 4, torch.float32)
                             for r in range(world.size)]))


def check_scatter(world):
    for group, ranks, me, later in ways(world):
        for dtype in MOVED:
            for length in (0, 1, 1000):
                root = ranks[-1]
                out = torch.empty(length, dtype=dtype)
                parts = [values(r, length, dtype, 2) for r in ranks]
                finish(dist.scatter(out, parts if ranks[me] == root else None,
                                    root, group, later))
                same(out, values(ranks[me], length, dtype, 2))


def check_all_to_all_single(world):
    for group, ranks, me, later in ways(world):
        size = len(ranks)
        for dtype in MOVED:
            for rows in (0, 1, 50):
                whole = [values(r, size * rows * 3, dtype).view(-1, 3)
                         for r in ranks]
                out = torch.empty(size * rows, 3, dtype=dtype)
                finish(dist.all_to_all_single(out, whole[me].clone(),
                                              group=group, async_op=later))
                same(out, torch.cat([w[me * rows:(me + 1) * rows]
                                     for w in whole]))
        x = values(ranks[me], size * 2, torch.float32)
        finish(dist.all_to_all_single(x, x, group=group, async_op=later))
        same(x, torch.cat([values(r, size * 2, torch.float32)
                           [2 * me:2 * me + 2] for r in ranks]))


def check_all_to_all_single_with_split_sizes(world):
    for group, ranks, me, later in ways(world):
        size = len(ranks)

        def split(source):  # rows to each rank, zero among them
            return [(source * 2 + k) % 4 for k in range(size)]

        def rows(source):
            return values(ranks[source], 5 * sum(split(source)),
                          torch.float32).view(-1, 5)
        recv = [split(q)[me] for q in range(size)]
        out = torch.empty(sum(recv), 5)
        finish(dist.all_to_all_single(out, rows(me), recv, split(me), group,
                                      later))
        same(out, torch.cat([rows(q).split(split(q))[me]
                             for q in range(size)]))


def check_all_to_all_list(world):
    for group, ranks, me, later in ways(world):
        size = len(ranks)

        def parts(source):
            return [values(ranks[source], source + 2 * k, torch.int32)
                    for k in range(size)]
        outs = [torch.empty(q + 2 * me, dtype=torch.int32)
                for q in range(size)]
        finish(dist.all_to_all(outs, parts(me), group, later))
        for q, out in enumerate(outs):
            same(out, parts(q)[me])


def check_tensors_that_are_not_contiguous(world):
    def strided(rank):
        return values(rank, 60, torch.float32).view(6, 10).t()
    total = sum(strided(r) for r in range(world.size))
    for later in (False, True):
        x = torch.empty(6, 10).t().copy_(strided(world.rank))
        assert not x.is_contiguous()
        finish(dist.all_reduce(x, async_op=later))
        same(x, total)
        column = torch.zeros(8, 3)
        column[:, 1] = world.rank + 1
        finish(dist.broadcast(column[:, 1], 1, async_op=later))
        assert torch.equal(column[:, 1], torch.full((8,), 2.0))
        assert torch.equal(column[:, 0], torch.zeros(8))
        outs = [torch.zeros(10, 6).t() for _ in range(world.size)]
        finish(dist.all_gather(outs, strided(world.rank).t().contiguous().t()
                               .t(), async_op=later))
        for r, out in enumerate(outs):
            same(out, strided(r).t())
    wide = torch.zeros(world.size * 2, 4)[:, ::2]
    dist.all_gather_into_tensor(wide, torch.full((2, 2), float(world.rank)))
    assert torch.equal(wide[:, 0], torch.arange(world.size).repeat_interleave(
        2).float())


if __name__ == "__main__":
    distributed_ranks.main(globals(), sizes=(2, 4))

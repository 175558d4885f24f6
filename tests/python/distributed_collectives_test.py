"""Every collective of torch.distributed on the backend aliquot, against what the
test computes itself: types, in place, asynchronous, subgroups, lists, odd
memory layouts, empty tensors, and what is refused."""

import warnings

import distributed_ranks

import torch
import torch.distributed as dist

from aliquot import Unsupported

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
MOVED = FLOATS + INTS + (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
                         torch.uint16, torch.uint32, torch.uint64,
                         torch.complex64)
LENGTHS = (0, 1, 7, 1000, 70001)


def values(rank, length, dtype, salt=0):
    """Small whole numbers: exact in every type, different on every rank."""
    x = (torch.arange(length) * 7 + rank * 3 + salt) % 11
    if dtype is torch.bool:
        return (x % 2).to(torch.bool)
    if dtype is torch.complex64:
        return torch.complex(x.float(), x.float() + 1)
    return x.to(torch.float32).to(dtype)


def bits(tensor):
    tensor = tensor.contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.reshape(-1).view(torch.uint8)


def same(got, want, what=""):
    assert got.shape == want.shape, (what, got.shape, want.shape)
    assert got.dtype == want.dtype, (what, got.dtype, want.dtype)
    assert torch.equal(bits(got), bits(want)), (what, got, want)


def finish(work):
    """Waits in one of the ways there are, in turn."""
    if work is None:
        return
    finish.turn = (getattr(finish, "turn", 0) + 1) % 4
    if finish.turn == 0:
        assert work.wait() is True
    elif finish.turn == 1:
        work.get_future().wait()
        assert work.is_completed() and work.is_success()
    elif finish.turn == 2:
        import time
        end = time.monotonic() + 30
        while not work.is_completed():
            assert time.monotonic() < end
        assert work.exception() is None
    else:
        from datetime import timedelta
        work.wait(timedelta(seconds=30))
    assert work.is_completed()


def ways(world):
    """(group, its global ranks, own rank in it, asynchronous)."""
    everyone = list(range(world.size))
    yield None, everyone, world.rank, False
    yield None, everyone, world.rank, True
    for ranks in {(0, world.size - 1), (1,)}:
        group = subgroup(world, ranks)
        if world.rank in ranks:
            yield group, list(ranks), ranks.index(world.rank), True


_subgroups = {}


def subgroup(world, ranks):
    if ranks not in _subgroups:
        for each in sorted({(0, world.size - 1), (1,)}):
            _subgroups[each] = dist.new_group(list(each))
    return _subgroups[ranks]


def reference(op, parts):
    """In rank order, in the type that the library sums in, rounded once."""
    wide = parts[0].dtype
    if wide in (torch.float16, torch.bfloat16):
        wide = torch.float32
    total = parts[0].to(wide)
    for part in parts[1:]:
        part = part.to(wide)
        total = (torch.minimum(total, part) if op == "MIN" else
                 torch.maximum(total, part) if op == "MAX" else total + part)
    if op == "AVG":
        total = total * torch.tensor(1 / len(parts), dtype=wide)
    return total.to(parts[0].dtype)


def ops_of(dtype):
    return ("SUM", "MIN", "MAX") + (("AVG",) if dtype in FLOATS else ())


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
    op = dist._make_nccl_premul_sum(0.5)
    x = values(world.rank, 100, torch.float32)
    dist.all_reduce(x, op)
    same(x, sum(0.5 * values(r, 100, torch.float32)
                for r in range(world.size)))
    out = torch.empty(10)
    dist.reduce_scatter_tensor(
        out, values(world.rank, 10 * world.size, torch.float32), op)
    whole = sum(0.5 * values(r, 10 * world.size, torch.float32)
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
    from datetime import timedelta
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


def refused(kind, text, call, *args, **options):
    try:
        call(*args, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError("%s was not refused" % text)


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

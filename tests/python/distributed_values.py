"""What the tests of torch.distributed send and expect."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

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
        end = time.monotonic() + 30
        while not work.is_completed():
            assert time.monotonic() < end
        assert work.exception() is None
    else:
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


def refused(kind, text, call, *args, **options):
    try:
        call(*args, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError("%s was not refused" % text)

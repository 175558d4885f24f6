"""Groups of ranks and their collectives, on anything that has memory.

An operation without a stream is done on return.  Ctrl-C ends one that waits:
the group is then aborted, and the peers get an error instead of waiting.
"""

import ctypes
from typing import Any, List, Optional, Sequence, Union

from . import _dtype, _ffi
from ._arguments import items
from ._error import check
from ._handle import Handle, nanoseconds
from ._interrupt import guarded
from ._library import library
from ._memory import Span, new_like, span
from ._work import Stream, Work

OPS = {"sum": _ffi.ALQ_SUM, "avg": _ffi.ALQ_AVG, "min": _ffi.ALQ_MIN,
       "max": _ffi.ALQ_MAX}


def _op(op: Union[str, int]) -> int:
    if isinstance(op, int):
        return op
    if op not in OPS:
        raise ValueError("reduction %r is unknown; known are %s" %
                         (op, ", ".join(OPS)))
    return OPS[op]


def _same_dtype(source: Span, target: Span) -> None:
    if source.dtype != target.dtype:
        raise TypeError("the source has elements of %s, the target of %s" %
                        (_dtype.NAMES[source.dtype],
                         _dtype.NAMES[target.dtype]))


def _same_count(what: str, got: int, want: int) -> None:
    if got != want:
        raise ValueError("%s holds %d elements, the call moves %d" %
                         (what, got, want))


class Stats:
    """Exact counts of a group since it was made."""

    ops: int
    bytes_read: int
    bytes_written: int
    peer_bytes_read: int
    syscalls: int
    sleeps: int

    def __init__(self, raw: Any) -> None:
        for name, _ in raw._fields_[2:]:
            setattr(self, name, getattr(raw, name))


class Group(Handle):
    """A set of ranks.  All members call the same operations in the same order.

    stream=None: done on return, the result is what was written.  Otherwise the
    operation is enqueued and the result is a Work.
    """

    _kind = "group"
    _release = "alq_group_release"

    def __init__(self, handle: int, context: Any) -> None:
        self._context = context
        self._own(handle)
        self.rank: int = library().alq_group_rank(self._handle)
        self.size: int = library().alq_group_size(self._handle)

    def __repr__(self) -> str:
        return "<aliquot.Group rank %d of %d>" % (self.rank, self.size)

    @property
    def ranks(self) -> List[int]:
        """World ranks of the members, in group order."""
        out = (ctypes.c_int32 * self.size)()
        check(library().alq_group_ranks, self._live(), out, self.size)
        return list(out)

    def split(self, color: int, key: int = 0,
              name: Optional[str] = None) -> Optional["Group"]:
        """A new group of equal color, ordered by (key, rank); None for a
        negative color."""
        out = ctypes.c_void_p()
        guarded(self, library().alq_group_split, self._live(), color, key,
                None if name is None else name.encode(), ctypes.byref(out))
        return Group(out.value, self._context) if out.value else None

    def shrink(self, timeout: Optional[float] = None) -> "Group":
        """After a failure: a group of the members that are alive and call this,
        in the order of their old ranks.  Raises on a rank that was removed.

        The shrunk world of a context is its world from then on."""
        out = ctypes.c_void_p()
        guarded(self, library().alq_group_shrink, self._live(),
                nanoseconds(timeout), ctypes.byref(out))
        group = Group(out.value, self._context)
        self._context._shrunk(self, group)
        return group

    def set_timeout(self, seconds: Optional[float]) -> None:
        """Default deadline of operations; None restores the context's."""
        check(library().alq_group_set_timeout, self._live(),
              nanoseconds(seconds))

    def check(self) -> None:
        """Raises why the group is poisoned, if it is."""
        check(library().alq_group_status, self._live())

    def stats(self) -> Stats:
        raw = _ffi.alq_group_stats(
            struct_size=ctypes.sizeof(_ffi.alq_group_stats))
        check(library().alq_group_get_stats, self._live(), ctypes.byref(raw))
        return Stats(raw)

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Wakes everyone and poisons the group.  Any thread; never blocks."""
        check(library().alq_group_abort, self._live(), reason.encode())

    def close(self, timeout: Optional[float] = None) -> None:
        """Orderly end of the group.  Collective."""
        if not self.closed:
            guarded(self, library().alq_group_close, self._live(),
                    nanoseconds(timeout))
            self.release()

    # ------------------------------------------------------------ collectives

    def _run(self, function: Any, args: Any, stream: Optional[Stream],
             keep: Any) -> Any:
        """Calls function(group, *args, stream, work, err)."""
        if stream is not None:
            return Work(self._enqueue(function, args, stream), keep)
        guarded(self, function, self._live(), *args, None, None)
        return keep[-1] if keep else None

    def _enqueue(self, function: Any, args: Any, stream: Stream) -> int:
        work = ctypes.c_void_p()
        check(function, self._live(), *args, stream._live(),
              ctypes.byref(work))
        return work.value or 0

    def all_reduce(self, array: Any, out: Any = None, op: Any = "sum", *,
                   stream: Optional[Stream] = None) -> Any:
        """out[i] = op over ranks of array[i]; out None: in place."""
        source = span(array, out is None)
        target = source
        if out is not None:
            target = span(out, True)
            _same_dtype(source, target)
            _same_count("the target", target.count, source.count)
        return self._run(
            library().alq_group_all_reduce,
            (source.address, target.address, source.count, source.dtype,
             _op(op)), stream, (array, array if out is None else out))

    def all_gather(self, array: Any, out: Any = None, *,
                   stream: Optional[Stream] = None) -> Any:
        """The ranks' arrays one after the other; out None: a new array with one
        more dim in front."""
        source = span(array)
        if out is None:
            out = new_like(array, source.dtype, (self.size,) + source.shape)
        target = span(out, True)
        _same_dtype(source, target)
        _same_count("the target", target.count, source.count * self.size)
        return self._run(
            library().alq_group_all_gather,
            (source.address, target.address, source.count, source.dtype),
            stream, (array, out))

    def all_gather_v(self, array: Any, out: Any, counts: Sequence[int], *,
                     stream: Optional[Stream] = None) -> Any:
        """As all_gather with counts[r] elements from rank r."""
        source, target, each = span(array), span(out, True), self._each(counts)
        _same_dtype(source, target)
        _same_count("the source", source.count, each[self.rank])
        _same_count("the target", target.count, sum(each))
        return self._run(
            library().alq_group_all_gather_v,
            (source.address, target.address, (ctypes.c_int64 * self.size)(*each),
             source.dtype), stream, (array, out))

    def reduce_scatter(self, array: Any, out: Any = None, op: Any = "sum", *,
                       stream: Optional[Stream] = None) -> Any:
        """out = own part of op over ranks of array, whose first dim is the
        group's size where out is None."""
        source = span(array)
        if out is None:
            if not source.shape or source.shape[0] % self.size:
                raise ValueError("the first dim of %s is not divisible by %d "
                                 "ranks" % (source.shape, self.size))
            out = new_like(array, source.dtype, (
                source.shape[0] // self.size,) + source.shape[1:])
        target = span(out, True)
        _same_dtype(source, target)
        _same_count("the source", source.count, target.count * self.size)
        return self._run(
            library().alq_group_reduce_scatter,
            (source.address, target.address, target.count, source.dtype,
             _op(op)), stream, (array, out))

    def reduce_scatter_v(self, array: Any, out: Any, counts: Sequence[int],
                         op: Any = "sum", *,
                         stream: Optional[Stream] = None) -> Any:
        """As reduce_scatter with counts[r] elements for rank r."""
        source, target, each = span(array), span(out, True), self._each(counts)
        _same_dtype(source, target)
        _same_count("the source", source.count, sum(each))
        _same_count("the target", target.count, each[self.rank])
        return self._run(
            library().alq_group_reduce_scatter_v,
            (source.address, target.address, (ctypes.c_int64 * self.size)(*each),
             source.dtype, _op(op)), stream, (array, out))

    def broadcast(self, array: Any, root: int = 0, *,
                  stream: Optional[Stream] = None) -> Any:
        """array of root to array of every rank."""
        target = span(array, self.rank != root)
        return self._run(
            library().alq_group_broadcast,
            (target.address, target.count, target.dtype, root), stream,
            (array,))

    def all_to_all(self, array: Any, out: Any = None, *,
                   stream: Optional[Stream] = None) -> Any:
        """Part r of array goes to rank r, part r of out comes from it."""
        source = span(array)
        if out is None:
            out = new_like(array, source.dtype, source.shape)
        target = span(out, True)
        _same_dtype(source, target)
        _same_count("the target", target.count, source.count)
        if source.count % self.size:
            raise ValueError("%d elements do not divide into %d parts" %
                             (source.count, self.size))
        return self._run(
            library().alq_group_all_to_all,
            (source.address, target.address, source.count // self.size,
             source.dtype), stream, (array, out))

    def barrier(self, *, stream: Optional[Stream] = None) -> Any:
        return self._run(library().alq_group_barrier, (), stream, None)

    def send(self, array: Any, peer: int, *,
             stream: Optional[Stream] = None) -> Any:
        source = span(array)
        return self._run(
            library().alq_group_send,
            (source.address, source.count, source.dtype, peer), stream,
            (array,))

    def recv(self, array: Any, peer: int, *,
             stream: Optional[Stream] = None) -> Any:
        target = span(array, True)
        return self._run(
            library().alq_group_recv,
            (target.address, target.count, target.dtype, peer), stream,
            (array,))

    def _each(self, counts: Sequence[int]) -> List[int]:
        """How many elements each rank has."""
        each = items("counts", counts, "a number of elements for each rank",
                     "counts=[3, 1]")
        if len(each) != self.size:
            raise ValueError("counts has %d numbers, the group %d ranks; give "
                             "one number for each rank" %
                             (len(each), self.size))
        return each


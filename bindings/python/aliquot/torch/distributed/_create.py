"""Process groups from torch's store.

Every process group has a context of its own: only its members take part in
making it, which is what torch promises to the callers of new_group.
"""

import time
from datetime import timedelta
from typing import Any, List, Mapping, Optional, Union

from ..._context import Context, _in_thread, open_context
from ..._error import DeadlineExceeded, Error
from ..._ffi import ALQ_DEADLINE_EXCEEDED
from ._errors import in_group


class Options:
    """pg_options of init_process_group and new_group.

    hints: those of aliquot.open.  progress: True or False to have or not to
    have a thread of the library that runs asynchronous operations while the
    program computes; None leaves it to the library."""

    def __init__(self, hints: Union[None, str, Mapping[str, Any]] = None,
                 progress: Optional[bool] = None) -> None:
        self.hints = hints
        self.progress = progress


def create(place: Any, options: Any) -> Any:
    """The creator that torch calls on every member."""
    ranks = list(place.global_ranks_in_group) or list(range(place.group_size))
    return connect(place.store, place.group_rank, place.group_size,
                   place.timeout, ranks, place.group_id, options)


def connect(store: Any, rank: int, size: int, timeout: timedelta,
            ranks: List[int], name: str, options: Any = None) -> Any:
    """A process group of `size` ranks that meet in the store."""
    from ._group import ProcessGroup
    if not isinstance(options, Options):
        options = Options()
    group = ProcessGroup(store, rank, size, ranks, name, options)
    seconds = timeout.total_seconds()
    try:
        context = _meet(store, rank, size, seconds, ranks, options)
    except Error as error:
        raise in_group(error, group) from None
    group._begin(context, seconds)
    return group


def _meet(store: Any, rank: int, size: int, seconds: float, ranks: List[int],
          options: Options) -> Context:
    if size == 1:
        return open_context("single", hints=options.hints, timeout=seconds,
                            progress=options.progress)
    end = time.monotonic() + seconds
    context = open_context("bytes", rank=rank, world_size=size,
                           hints=options.hints, timeout=seconds,
                           progress=options.progress)
    try:
        mine = _key(rank)
        store.set(mine, context.bootstrap_blob())
        _wait(store, size, end, seconds, ranks)
        keys = [_key(r) for r in range(size)]
        blobs = (store.multi_get(keys) if store.has_extended_api() else
                 [store.get(key) for key in keys])
        context.connect([bytes(blob) for blob in blobs],
                        max(end - time.monotonic(), 0.001))
        # All have read it; a later group of the same name must not find it.
        store.delete_key(mine)
    except BaseException:
        context.release()
        raise
    return context


def _key(rank: int) -> str:
    return "aliquot/%d" % rank


def _wait(store: Any, size: int, end: float, seconds: float,
          ranks: List[int]) -> None:
    """Until all ranks have come.  By another thread, since the store does not
    see Ctrl-C."""
    keys = [_key(r) for r in range(size)]
    left = max(end - time.monotonic(), 0.001)
    try:
        _in_thread(lambda: store.wait(keys, timedelta(seconds=left)), None)
    except RuntimeError:
        if time.monotonic() < end - 0.5:
            raise  # the store itself fails
        late = [r for r in range(size) if not store.check([_key(r)])]
        if not late:
            return
        raise DeadlineExceeded(
            "%s did not join the process group within %g s; all members have "
            "to call init_process_group or new_group" % (
                " and ".join("rank %d" % ranks[r] for r in late), seconds),
            ALQ_DEADLINE_EXCEEDED, late[0]) from None

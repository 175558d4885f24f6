"""The process group: its life, and how its operations are issued."""

import atexit
import ctypes
import functools
import os
import sys
import threading
import weakref
from datetime import timedelta
from typing import Any, List, Optional

import torch
import torch.distributed as dist

from ..._error import Error, check, failed_precondition
from ..._interrupt import guarded
from ..._library import library
from ._collectives import Collectives
from ._errors import in_group, unsupported
from ._lists import ListCollectives
from ._memory import Pool
from ._messages import Messages
from ._runner import runner
from ._work import Done, Several, Work, nanoseconds

CPU = torch.device("cpu")
# How long an orderly end waits for the other ranks.
_CLOSE_S = 10.0
_open: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()
_at_exit = False


class ProcessGroup(Collectives, ListCollectives, Messages, dist.ProcessGroup):
    """Made by init_process_group, new_group and split_group."""

    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = False

    def __init__(self, store: Any, rank: int, size: int, ranks: List[int],
                 name: str, options: Any) -> None:
        dist.ProcessGroup.__init__(self, store, rank, size)
        self._store = store
        self._rank = rank
        self._size = size
        self.global_ranks = ranks
        self._name = name
        self._desc = "undefined"
        self._options = options
        self._context: Any = None
        self._group: Any = None
        self._pid = os.getpid()
        _register_base(self, rank, size)

    def _begin(self, context: Any, seconds: float) -> None:
        self._context = context
        self._group = context.world
        self._handle = self._group._live()
        self._timeout_ns = int(seconds * 1e9)
        self._stream = context.stream()
        self._streams: Any = {}
        self._pool = Pool(context)
        self._running = False
        self._poll_lock = threading.Lock()
        self._ended = False
        self._issued = 0
        self._batch: Optional[List[Any]] = None
        self._dropped: List[Any] = []
        self._counts_type = ctypes.c_int64 * self._size
        _open.add(self)
        _close_at_exit()

    def __repr__(self) -> str:
        return "<aliquot ProcessGroup %s, rank %d of %d>" % (
            self._name, self._rank, self._size)

    # ------------------------------------------------ what torch asks a group

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def name(self) -> str:
        return "aliquot"

    def getBackendName(self) -> str:
        return "aliquot"

    def _get_backend_name(self) -> str:
        return "aliquot"

    def _set_group_name(self, name: str) -> None:
        self._name = name
        try:
            dist.ProcessGroup._set_group_name(self, name)
        except RuntimeError:
            pass  # versions whose C++ side has no name without a backend

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def pg_name(self) -> str:
        return self._name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> List[torch.device]:
        return [CPU]

    def _get_backend(self, device: Any) -> "ProcessGroup":
        return self

    get_backend = _get_backend

    @property
    def options(self) -> Any:
        return self._options

    def get_group_store(self) -> Any:
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self._issued

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        pass

    def eager_connect_single_device(self, device: Any) -> None:
        pass

    def perform_nocolor_split(self, device: Any) -> None:
        pass

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_ns = nanoseconds(timeout)
        check(library().alq_group_set_timeout, self._live(), self._timeout_ns)

    _set_default_timeout = set_timeout

    # ------------------------------------------------------------------ memory

    def supports_tensor_alloc(self, device: Any) -> bool:
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: Any, *, dtype: Any = None,
                        device: Any = None) -> torch.Tensor:
        """A tensor in memory that the other ranks read in place."""
        return self._pool.tensor(size, dtype or torch.get_default_dtype())

    # ------------------------------------------------------------------- issue

    def _live(self) -> Any:
        if self._group is None or self._group.closed:
            raise self._wrong(failed_precondition(
                "process group %s was destroyed" % self._name))
        return self._handle

    def _wrong(self, error: Error) -> Error:
        return in_group(error, self)

    def _issue(self, function: Any, args: Any, sync: bool, keep: Any,
               after: Any, result: List[torch.Tensor], timeout: Any = None,
               stream: Any = None) -> Any:
        """function(group, *args, stream, work, err).  sync: done on return.
        after() follows the operation."""
        handle = self._live()
        self._issued += 1
        if timeout is not None and timeout.days >= 0:
            return self._issue_within(timeout, function, args, sync, keep,
                                      after, result, stream)
        if sync:
            try:
                guarded(self._group, function, handle, *args, None, None)
            except Error as error:
                raise self._wrong(error) from None
            if after is not None:
                after()
            return Done(result)
        out = ctypes.c_void_p()
        try:
            check(function, handle, *args, (stream or self._stream)._live(),
                  ctypes.byref(out))
        except Error as error:
            raise self._wrong(error) from None
        work = Work(self, out.value or 0, keep, after, result)
        if not self._running:
            self._running = True
            runner().add_group(self)
        if self._dropped:
            self._sweep()
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _issue_within(self, timeout: timedelta, function: Any, args: Any,
                      *rest: Any) -> Any:
        """With a deadline of its own."""
        set_timeout, handle = library().alq_group_set_timeout, self._live()
        check(set_timeout, handle, max(nanoseconds(timeout), 1))
        try:
            *kept, stream = rest
            return self._issue(function, args, *kept, None, stream)
        finally:
            check(set_timeout, handle, self._timeout_ns)

    def _counts(self, counts: Any) -> Any:
        return self._counts_type(*counts)

    def _complete(self, work: Work) -> None:
        runner().add_work(work)

    def _poll(self) -> bool:
        """Helps operations along; whether some remain.  Any thread: the group
        does not end meanwhile."""
        with self._poll_lock:
            return not self._ended and bool(self._context.poll())

    def _outlive(self, handle: Any, keep: Any) -> None:
        self._dropped.append((handle, keep))

    def _sweep(self) -> None:
        """Lets go of works that were dropped and are done meanwhile."""
        left, done = [], ctypes.c_int32()
        for handle, keep in self._dropped:
            check(library().alq_work_query, handle, ctypes.byref(done))
            if done.value:
                library().alq_work_release(handle)
            else:
                left.append((handle, keep))
        self._dropped = left

    # -------------------------------------------------------------- coalescing

    def _start_coalescing(self, device: Any = None) -> None:
        if self._batch is not None:
            raise RuntimeError("process group %s is already coalescing" %
                               self._name)
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Any:
        batch, self._batch = self._batch, None
        return Several(batch or [], [])

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # --------------------------------------------------------------- subgroups

    def split_group(self, new_ranks: List[int],
                    timeout: Optional[timedelta] = None, opts: Any = None,
                    group_name: Optional[str] = None,
                    group_desc: Optional[str] = None,
                    device_types: Any = None) -> Optional["ProcessGroup"]:
        """A process group of some ranks of this one; None on the others."""
        if self._rank not in new_ranks:
            return None
        from ._create import connect
        name = group_name or "%s:split:%s" % (
            self._name, "_".join(map(str, new_ranks)))
        if timeout is None:
            timeout = timedelta(microseconds=self._timeout_ns // 1000)
        group = connect(
            dist.PrefixStore("%s/" % name, self._store),
            new_ranks.index(self._rank), len(new_ranks), timeout,
            [self.global_ranks[r] for r in new_ranks], name,
            opts or self._options)
        group._set_group_desc(group_desc or "%s:split" % self._desc)
        return group

    def merge_remote_group(self, *args: Any, **options: Any) -> Any:
        raise unsupported("process groups of the backend aliquot do not merge")

    # --------------------------------------------------------------------- end

    def shutdown(self) -> None:
        """Meets the other ranks for a while, then leaves.  Twice is
        harmless."""
        context = self._leave()
        if context is None:
            return
        try:
            context.close(min(_CLOSE_S, max(self._timeout_ns / 1e9, 0.001)))
        except Error:
            pass  # the others have left, or never come: nothing to wait for
        self._let_go()

    def abort(self, reason: str = "aborted by the program") -> None:
        """Ends everything at once; the peers get an error.  Any thread."""
        if self._context is not None and not self._context.closed:
            self._context.abort("process group %s: %s" % (self._name, reason))

    def _let_go(self) -> None:
        """Of everything that would keep the context in the world."""
        for stream in (self._stream, *self._streams.values()):
            stream.release()
        self._group.release()

    def _leave(self) -> Any:
        context = self._context
        if (context is None or context.closed or self._pid != os.getpid()):
            return None
        _open.discard(self)
        runner().forget(self)
        with self._poll_lock:
            self._ended = True
        self._pool.clear()
        return context


def _register_base(group: ProcessGroup, rank: int, size: int) -> None:
    """Gives the C++ side of the group the bare backend object that torch's
    recorders ask for the group's name.  Versions without it need none."""
    kind = dist.ProcessGroup.BackendType.CUSTOM
    try:
        group._base = _named_backend()(rank, size)
        dist.ProcessGroup._register_backend(group, CPU, kind, group._base)
        dist.ProcessGroup._set_default_backend(group, kind)
    except (TypeError, AttributeError, RuntimeError):
        pass


@functools.lru_cache(maxsize=None)
def _named_backend() -> Any:
    class Named(torch._C._distributed_c10d.Backend):  # type: ignore[misc]
        def getBackendName(self) -> str:
            return "aliquot"

        name = _get_backend_name = getBackendName

    return Named


def _close_at_exit() -> None:
    """A program that ends without destroy_process_group still meets its peers,
    unless it failed."""
    global _at_exit
    if not _at_exit:
        _at_exit = True
        atexit.register(_close_all)


def _close_all() -> None:
    failed = getattr(sys, "last_value", None) is not None
    for group in sorted(_open, key=lambda g: g._name, reverse=True):
        if failed:
            context = group._leave()
            if context is not None:
                context.leave("it failed")
        else:
            group.shutdown()

"""A context is one rank: its place in the world, its groups and its memory."""

import ctypes
import json
import threading
import weakref
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

from . import _ffi
from ._arguments import items
from ._buffer import Buffer
from ._error import Error, check
from ._group import Group
from ._handle import Handle, nanoseconds, new_handle
from ._interrupt import on_main_thread
from ._library import library, text_of
from ._mesh import Mesh, Spec
from ._work import Event, Stream

BOOTSTRAPS = {"auto": _ffi.ALQ_BOOTSTRAP_AUTO,
              "single": _ffi.ALQ_BOOTSTRAP_SINGLE,
              "env": _ffi.ALQ_BOOTSTRAP_ENV,
              "store": _ffi.ALQ_BOOTSTRAP_STORE,
              "bytes": _ffi.ALQ_BOOTSTRAP_BYTES,
              "local": _ffi.ALQ_BOOTSTRAP_LOCAL}
DEVICES = {"cpu": _ffi.ALQ_DEVICE_CPU, "cuda": _ffi.ALQ_DEVICE_CUDA}
PROGRESS = {None: _ffi.ALQ_PROGRESS_AUTO, False: _ffi.ALQ_PROGRESS_OFF,
            True: _ffi.ALQ_PROGRESS_ON}
_POLL_S = 0.1


def hints_text(hints: Union[None, str, Mapping[str, Any]]) -> Optional[bytes]:
    if hints is None or isinstance(hints, str):
        return None if hints is None else hints.encode()
    if not isinstance(hints, Mapping):
        raise TypeError("hints=%.80r is of type %s; give a dict, or a str as "
                        "in \"huge_pages=0\"" % (hints, type(hints).__name__))
    return ";".join("%s=%s" % item for item in hints.items()).encode()


def choice(what: str, name: Any, known: Mapping[Any, int]) -> int:
    if name not in known:
        raise ValueError("%s %r is unknown; known are %s" % (
            what, name, ", ".join(repr(k) for k in known)))
    return known[name]


class Context(Handle):
    """Made by aliquot.open.  As a context manager it closes in order where the
    block ends well, and leaves at once where it raises, so that the peers get
    an error instead of waiting."""

    _kind = "context"
    _release = "alq_release"

    def __init__(self, handle: int) -> None:
        self._own(handle)
        self._world: Any = None  # weak: a group holds its context

    def __repr__(self) -> str:
        return "<aliquot.Context rank %d of %d>" % (self.rank, self.size)

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.leave("%s: %s" % (kind.__name__, value))

    @property
    def rank(self) -> int:
        return int(library().alq_context_rank(self._live()))

    @property
    def size(self) -> int:
        return int(library().alq_context_size(self._live()))

    @property
    def world(self) -> Group:
        """The group of all ranks."""
        group = self._world and self._world()
        if group is None or group.closed:
            group = Group(new_handle(library().alq_group_world, self._live()),
                          self)
            self._world = weakref.ref(group)
        return group

    def _shrunk(self, old: Group, new: Group) -> None:
        """If the old group was the world, the new one is."""
        if self._world and self._world() is old:
            self._world = weakref.ref(new)

    def mesh(self, spec: Spec = "") -> Mesh:
        """Named axes over the ranks: "dp_replicate=2,dp_shard=-1" or a dict.
        Collective."""
        return Mesh(self, spec)

    def buffer(self, nbytes: int) -> Buffer:
        return Buffer(self, nbytes)

    def stream(self) -> Stream:
        return Stream(self)

    def event(self) -> Event:
        """A new event; it counts as done."""
        return Event(self)

    def poll(self) -> bool:
        """Helps queued operations along; whether some remain."""
        busy = ctypes.c_int32()
        check(library().alq_poll, self._live(), ctypes.byref(busy))
        return bool(busy.value)

    def info(self) -> Dict[str, Any]:
        """World, device, threads, transports, libraries loaded and why not."""
        return dict(json.loads(text_of(library().alq_runtime_info,
                                       self._live())))

    def log(self) -> Iterator[str]:
        """Takes the lines of the context's log, oldest first."""
        while True:
            line = text_of(library().alq_log_read, self._live())
            if not line:
                return
            yield line

    def set_fault(self, spec: Optional[str]) -> None:
        """Arms fault points, for tests of failure handling; None disarms."""
        check(library().alq_fault_set, self._live(),
              None if spec is None else spec.encode())

    def bootstrap_blob(self) -> bytes:
        """This rank's bytes, for bootstrap="bytes"."""
        buffer = ctypes.create_string_buffer(1024)
        need = ctypes.c_size_t()
        check(library().alq_bootstrap_blob, self._live(), buffer, len(buffer),
              ctypes.byref(need))
        return buffer.raw[:need.value]

    def connect(self, blobs: List[bytes],
                timeout: Optional[float] = None) -> None:
        """Finishes bootstrap="bytes" with the bytes of all ranks, in order."""
        blobs = items("blobs", blobs, "the bytes of all ranks",
                      "blobs=[first, second]")
        if len({len(blob) for blob in blobs}) != 1:
            raise ValueError("the ranks' blobs differ in length: %s" %
                             [len(blob) for blob in blobs])
        _in_thread(lambda: check(library().alq_connect, self._live(),
                                 b"".join(blobs), len(blobs[0]),
                                 nanoseconds(timeout)), None)

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Poisons every group of the context on every rank that can be told.
        Any thread; never blocks."""
        check(library().alq_abort, self._live(), reason.encode())

    def leave(self, reason: str = "left") -> None:
        """Ends this rank at once: the peers' pending and later calls fail with
        the reason.  (Dropping the handle alone would not tell them while an
        object made from the context is still referred to, as from the traceback
        of an exception.)"""
        if not self.closed:
            try:
                self.abort(reason[:500])
            except Error:
                pass  # not connected yet
            self.release()

    def close(self, timeout: Optional[float] = None) -> None:
        """Orderly end: waits for queued work and meets all ranks.  Twice is
        harmless.  What was made from the context is closed with it."""
        if self.closed:
            return
        handle = self._live()
        try:
            _in_thread(lambda: check(library().alq_close, handle,
                                     nanoseconds(timeout)), self.abort)
        finally:
            self.release()


def _in_thread(call: Any, cancel: Any) -> Any:
    """call(), by another thread where this is the main one, so that Ctrl-C is
    seen while it blocks; cancel() then ends it."""
    if not on_main_thread():
        return call()
    outcome: List[Any] = [None, None]
    done = threading.Event()

    def body() -> None:
        try:
            outcome[0] = call()
        except BaseException as error:  # raised again below
            outcome[1] = error
        done.set()

    waiter = threading.Thread(target=body, name="aliquot-wait", daemon=True)
    try:
        waiter.start()
    except RuntimeError:  # the interpreter is ending
        return call()
    try:
        while not done.wait(_POLL_S):
            pass
    except BaseException:
        if cancel is not None and not done.is_set():
            cancel("interrupted")
            done.wait(1)
        raise
    waiter.join()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def open_context(bootstrap: str = "auto", *, rank: int = 0, world_size: int = 0,
                 local_rank: int = 0, local_size: int = 0,
                 store_address: Optional[str] = None,
                 store_secret: Optional[str] = None,
                 world_name: Optional[str] = None, device: str = "cpu",
                 device_id: int = 0, progress: Optional[bool] = None,
                 hints: Union[None, str, Mapping[str, Any]] = None,
                 timeout: Optional[float] = None,
                 time_scale: float = 0.0) -> Context:
    """Opens this rank.

    bootstrap: "auto" (the environment of aliquot run or torchrun if there is
    one, else a world of one), "single", "env", "store" (TCP, store_address),
    "bytes" (then Context.connect) or "local" (ranks are threads that meet by
    world_name).  timeout: default deadline of every call, in seconds.
    """
    def text(value: Optional[str]) -> Optional[bytes]:
        return None if value is None else value.encode()

    desc = _ffi.alq_open_desc(
        struct_size=ctypes.sizeof(_ffi.alq_open_desc),
        bootstrap=choice("bootstrap", bootstrap, BOOTSTRAPS), rank=rank,
        world_size=world_size, local_rank=local_rank, local_size=local_size,
        device_type=choice("device", device, DEVICES), device_id=device_id,
        progress=choice("progress", progress, PROGRESS),
        store_address=text(store_address), store_secret=text(store_secret),
        world_name=text(world_name), hints=hints_text(hints),
        timeout_ns=nanoseconds(timeout), time_scale=time_scale)
    lib = library()
    # An interrupted open leaves a context that its own collector releases.
    return _in_thread(lambda: Context(new_handle(
        lib.alq_open, _ffi.ALQ_ABI_VERSION, ctypes.byref(desc))), None)

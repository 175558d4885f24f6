"""Streams, events, and works: what is enqueued and when it is done.

A signal handler of Python cannot run inside a call of the library.  The main
thread therefore waits in slices, and Ctrl-C is seen between two of them.
"""

import ctypes
from typing import Any, Optional

from . import _ffi
from ._error import check, status_of
from ._handle import Handle, nanoseconds, new_handle
from ._interrupt import on_main_thread
from ._library import library

SLICE_NS = 100_000_000


class Work(Handle):
    """One enqueued operation.  Holds its arrays until it is done."""

    _kind = "work"
    _release = "alq_work_release"

    def __init__(self, handle: int, keep: Any) -> None:
        self._keep = keep
        self._own(handle)

    @property
    def done(self) -> bool:
        """Whether it finished, well or not; never helps it along."""
        done = ctypes.c_int32()
        check(library().alq_work_query, self._live(), ctypes.byref(done))
        return bool(done.value)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Returns when it is done, or raises its error.  After a timeout of the
        caller's own the operation goes on."""
        wait_sliced(library().alq_work_wait, self._live(), nanoseconds(timeout),
                    lambda: self.done)
        self._keep = None

    def result(self, timeout: Optional[float] = None) -> Any:
        """wait(), then the array that was written."""
        keep = self._keep
        self.wait(timeout)
        return keep[-1] if keep else None


def wait_sliced(call: Any, handle: Any, timeout_ns: int,
                done: Any) -> None:
    """call(handle, timeout_ns, err), in slices on the main thread."""
    if not on_main_thread():
        check(call, handle, timeout_ns)
        return
    left = timeout_ns or 1 << 62  # the operation has a deadline of its own
    while True:
        turn = min(left, SLICE_NS)
        status, failure = status_of(call, handle, turn)
        if status == 0:
            return
        if status != _ffi.ALQ_DEADLINE_EXCEEDED or left == turn:
            raise failure
        if done():
            # It ended while the slice did: with what, this call says.
            check(call, handle, SLICE_NS)
            return
        left -= turn


class Stream(Handle):
    """A queue of operations that whoever waits helps along."""

    _kind = "stream"

    def __init__(self, context: Any) -> None:
        self._context = context
        self._stream = _ffi.alq_stream()
        check(library().alq_stream_create, context._live(),
              ctypes.byref(self._stream))
        self._hold(ctypes.byref(self._stream), library().alq_stream_release,
                   context._handle)

    def synchronize(self, timeout: Optional[float] = None) -> None:
        """Waits until all that was enqueued so far is done."""
        sync, context = library().alq_stream_sync, self._context._live()
        place = self.event()
        wait_sliced(lambda stream, ns, err: sync(context, stream, ns, err),
                    self._live(), nanoseconds(timeout), lambda: place.done)

    def event(self) -> "Event":
        """An event recorded here and now."""
        event = Event(self._context)
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        check(library().alq_event_wait, event._live(), self._live())


class Event(Handle):
    """A place in a stream."""

    _kind = "event"
    _release = "alq_event_release"

    def __init__(self, context: Any) -> None:
        self._context = context
        self._own(new_handle(library().alq_event_create, context._live()))

    def record(self, stream: Stream) -> None:
        check(library().alq_event_record, self._live(), stream._live())

    @property
    def done(self) -> bool:
        done = ctypes.c_int32()
        check(library().alq_event_query, self._live(), ctypes.byref(done))
        return bool(done.value)

    def synchronize(self, timeout: Optional[float] = None) -> None:
        wait_sliced(library().alq_event_sync, self._live(),
                    nanoseconds(timeout), lambda: self.done)


def stream_ref(stream: Optional[Stream]) -> Any:
    return None if stream is None else stream._live()


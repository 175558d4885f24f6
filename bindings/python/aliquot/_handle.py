"""A handle of the library that is released once: by close, or by the garbage
collector, in any order and on any thread, or at exit."""

import ctypes
import weakref
from typing import Any

from ._error import check, failed_precondition
from ._interrupt import guarded
from ._library import library


class Handle:
    _kind = "object"
    _release = ""

    def _own(self, handle: int) -> None:
        """Takes the handle over.  Releasing never blocks; in a forked child it
        does nothing."""
        self._handle: Any = ctypes.c_void_p(handle)
        self._finalizer = weakref.finalize(
            self, getattr(library(), self._release), self._handle)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def release(self) -> None:
        """Lets go of the object at once.  Never blocks; twice is harmless."""
        self._finalizer()

    def _live(self) -> Any:
        if not self._finalizer.alive:
            raise failed_precondition("this %s is closed" % self._kind)
        return self._handle


def new_handle(function: Any, *args: Any, owner: Any = None) -> int:
    """Calls function(*args, out, err) and returns *out.  owner: the call may
    block, and Ctrl-C aborts owner."""
    out = ctypes.c_void_p()
    if owner is None:
        check(function, *args, ctypes.byref(out))
    else:
        guarded(owner, function, *args, ctypes.byref(out))
    return out.value or 0


def nanoseconds(seconds: Any) -> int:
    """timeout_ns of a call: None is the default."""
    return 0 if seconds is None else max(int(seconds * 1e9), 1)

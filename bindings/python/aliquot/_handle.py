"""A handle of the library that is released once: by close, or by the garbage
collector, in any order and on any thread, or at exit."""

import ctypes
import weakref
from typing import Any

from ._error import check, failed_precondition
from ._interrupt import guarded
from ._library import library


class Lease:
    """What a handle and the views of its memory hold: the library's object is
    released when the last of them is gone."""
    __slots__ = ("__weakref__",)


def lease_of(keep: Any) -> Any:
    """What a view of memory must hold that belongs to keep."""
    return getattr(keep, "_lease", keep)


class Handle:
    _kind = "object"
    _release = ""

    def _own(self, handle: int) -> None:
        """Takes the handle over.  Releasing never blocks; in a forked child it
        does nothing."""
        self._hold(ctypes.c_void_p(handle), getattr(library(), self._release))

    def _hold(self, handle: Any, release: Any, *before: Any) -> None:
        """release(*before, handle) ends it."""
        self._handle: Any = handle
        self._lease: Any = Lease()
        self._finalizer = weakref.finalize(self._lease, release, *before,
                                           handle)

    @property
    def closed(self) -> bool:
        return self._lease is None or not self._finalizer.alive

    def release(self) -> None:
        """Lets go of the object: at once, unless views of its memory are left;
        then with the last of them.  Never blocks; twice is harmless."""
        self._lease = None

    def _live(self) -> Any:
        if self.closed:
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

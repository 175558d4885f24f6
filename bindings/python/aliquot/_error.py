"""Errors of the library as exceptions, and the one place that raises them."""

import ctypes
import threading
from typing import Any, Dict, Type

from . import _ffi


class Error(RuntimeError):
    """A call of the library failed.  str() is what happened, as in message; the
    class says of which kind.

    code is the ALQ_* status, name its name, rank the world rank at fault or -1;
    domain and native_code give the errno, or another library's own code, that
    caused it.
    """

    def __init__(self, message: str, code: int = _ffi.ALQ_UNKNOWN,
                 rank: int = -1, domain: int = 0, native_code: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.rank = rank
        self.domain = domain
        self.native_code = native_code

    @property
    def name(self) -> str:
        return _NAMES.get(self.code, "ALQ_UNKNOWN")

    def __str__(self) -> str:
        return str(self.message)  # some of Python's own classes would add to it

    def __reduce__(self) -> Any:
        return (type(self), (self.message, self.code, self.rank, self.domain,
                             self.native_code))


class Cancelled(Error):
    pass


class InvalidArgument(Error, ValueError):
    pass


class DeadlineExceeded(Error, TimeoutError):
    pass


class NotFound(Error, LookupError):
    pass


class AlreadyExists(Error):
    pass


class PermissionDenied(Error, PermissionError):
    pass


class ResourceExhausted(Error, MemoryError):
    pass


class FailedPrecondition(Error):
    pass


class Aborted(Error):
    pass


class OutOfRange(Error, IndexError):
    pass


class Unimplemented(Error, NotImplementedError):
    pass


class Internal(Error):
    pass


class Unavailable(Error):
    pass


class DataLoss(Error):
    pass


class Unauthenticated(Error, PermissionError):
    pass


class Unsupported(Error, NotImplementedError):
    pass


class PeerFailed(Error, ConnectionError):
    """A rank died, left or was removed: rank names it."""


class GroupPoisoned(Error, ConnectionError):
    """The group failed earlier; the message repeats the first cause."""


class RankMismatch(Error):
    """Ranks called different operations; the message names both."""


_CLASSES: Dict[int, Type[Error]] = {
    _ffi.ALQ_CANCELLED: Cancelled,
    _ffi.ALQ_INVALID_ARGUMENT: InvalidArgument,
    _ffi.ALQ_DEADLINE_EXCEEDED: DeadlineExceeded,
    _ffi.ALQ_NOT_FOUND: NotFound,
    _ffi.ALQ_ALREADY_EXISTS: AlreadyExists,
    _ffi.ALQ_PERMISSION_DENIED: PermissionDenied,
    _ffi.ALQ_RESOURCE_EXHAUSTED: ResourceExhausted,
    _ffi.ALQ_FAILED_PRECONDITION: FailedPrecondition,
    _ffi.ALQ_ABORTED: Aborted,
    _ffi.ALQ_OUT_OF_RANGE: OutOfRange,
    _ffi.ALQ_UNIMPLEMENTED: Unimplemented,
    _ffi.ALQ_INTERNAL: Internal,
    _ffi.ALQ_UNAVAILABLE: Unavailable,
    _ffi.ALQ_DATA_LOSS: DataLoss,
    _ffi.ALQ_UNAUTHENTICATED: Unauthenticated,
    _ffi.ALQ_UNSUPPORTED: Unsupported,
    _ffi.ALQ_PEER_FAILED: PeerFailed,
    _ffi.ALQ_GROUP_POISONED: GroupPoisoned,
    _ffi.ALQ_RANK_MISMATCH: RankMismatch,
}
_NAMES = {getattr(_ffi, "ALQ_" + name): "ALQ_" + name for name in (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND "
    "ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION "
    "ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS "
    "UNAUTHENTICATED UNSUPPORTED PEER_FAILED GROUP_POISONED "
    "RANK_MISMATCH").split()}
_SIZE = ctypes.sizeof(_ffi.alq_error)


def make_error(error: Any) -> Error:
    """The exception of a filled alq_error."""
    return _CLASSES.get(error.code, Error)(
        error.message.decode("utf-8", "replace"), error.code, error.rank,
        error.domain, error.native_code)


def failed_precondition(message: str) -> Error:
    return FailedPrecondition(message, _ffi.ALQ_FAILED_PRECONDITION)


class _Slot(threading.local):
    """An alq_error per thread, so that a call allocates nothing."""

    def __init__(self) -> None:
        self.error = _ffi.alq_error(struct_size=_SIZE)
        self.ref = ctypes.byref(self.error)


_slot = _Slot()


def check(function: Any, *args: Any) -> None:
    """Calls function(*args, err) and raises what it reports."""
    slot = _slot
    if function(*args, slot.ref) != 0:
        failure = make_error(slot.error)
        slot.error.struct_size = _SIZE
        raise failure


def status_of(function: Any, *args: Any) -> Any:
    """(status, exception or None) of function(*args, err)."""
    slot = _slot
    status = function(*args, slot.ref)
    if status == 0:
        return 0, None
    failure = make_error(slot.error)
    slot.error.struct_size = _SIZE
    return status, failure

"""Works: what a call of the process group returns."""

import ctypes
import threading
from datetime import timedelta
from typing import Any, List, Optional

import torch
import torch.distributed as dist
from torch.futures import Future

from ..._error import DeadlineExceeded, Error, check, status_of
from ..._interrupt import guarded
from ..._library import library
from ._errors import in_group


_FETCH_NS = 1_000_000_000
_FOREVER_NS = 10 ** 17  # every operation has a deadline of its own


def nanoseconds(timeout: Optional[timedelta]) -> int:
    """0, the library's "default", for a time-out that is not set."""
    if timeout is None or timeout.days < 0:
        return 0
    return max(int(timeout.total_seconds() * 1e9), 0)


def _done_future(result: Any) -> Any:
    future: Any = Future()
    future.set_result(result)
    return future


class Done(dist._Work):
    """An operation that was done when the call returned."""

    def __init__(self, result: List[torch.Tensor]) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Any:
        return None

    def synchronize(self) -> None:
        pass

    def result(self) -> List[torch.Tensor]:
        return self._result

    def get_future(self) -> Any:
        return _done_future(self._result)


class Work(dist._Work):
    """An operation in a stream.  Holds its tensors until it is done."""

    def __init__(self, group: Any, handle: int, keep: Any, after: Any,
                 result: List[torch.Tensor]) -> None:
        super().__init__()
        self._group = group
        self._handle = handle
        self._keep = keep
        self._after = after
        self._result = result
        self._over = False
        self._users = 0  # threads that are in a call with the handle
        self._error: Optional[BaseException] = None
        self._future: Any = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if not self.__dict__.get("_over", True):
            # The memory must outlive the operation, which nobody waited for.
            self._group._outlive(self._handle, self._keep)

    def _borrow(self) -> Optional[int]:
        """The handle, for one call; None when the operation is over."""
        with self._lock:
            if self._over:
                return None
            self._users += 1
            return self._handle

    def _give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._over and self._users == 0:
                library().alq_work_release(self._handle)

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        handle = self._borrow()
        if handle is not None:
            try:
                guarded(self._group._group, library().alq_work_wait, handle,
                        nanoseconds(timeout) or _FOREVER_NS)
                self._end(None)
            except Error as error:
                if isinstance(error, DeadlineExceeded) and not self._query(
                        handle):
                    # The caller's own time-out; the operation goes on.
                    raise in_group(error, self._group) from None
                self._end(error)
            finally:
                self._give_back()
        if self._error is not None:
            raise self._error
        return True

    def _query(self, handle: int) -> bool:
        done = ctypes.c_int32()
        check(library().alq_work_query, handle, ctypes.byref(done))
        return bool(done.value)

    def _end(self, error: Optional[Error]) -> None:
        """Once: what follows the operation, its error, its future."""
        with self._lock:
            if self._over:
                return
            if error is not None:
                self._error = in_group(error, self._group)
            elif self._after is not None:
                try:
                    self._after()
                except Exception as failure:
                    self._error = failure
            self._after = self._keep = None
            self._over = True
            future = self._future
        if future is not None:
            self._tell(future)

    def _tell(self, future: Any) -> None:
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._result)

    def is_completed(self) -> bool:
        handle = self._borrow()
        if handle is None:
            return True
        try:
            if not self._query(handle):
                return False
            # It is over: this only fetches how it ended.
            self._end(status_of(library().alq_work_wait, handle, _FETCH_NS)[1])
            return True
        finally:
            self._give_back()

    def _help(self, ns: int) -> None:
        """Waits for a moment, whatever comes of it."""
        handle = self._borrow()
        if handle is not None:
            try:
                status_of(library().alq_work_wait, handle, ns)
            finally:
                self._give_back()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> List[torch.Tensor]:
        return self._result

    def get_future(self) -> Any:
        """Completed by the runner if the operation still runs."""
        if not self.is_completed():
            self._group._poll()
            self.is_completed()
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future = Future()
            over = self._over
        if over:
            self._tell(future)
        else:
            self._group._complete(self)
        return future


class Several(dist._Work):
    """Operations that were issued together."""

    def __init__(self, works: List[Any], result: List[torch.Tensor]) -> None:
        super().__init__()
        self._works = works
        self._result = result

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        failure: Optional[BaseException] = None
        for work in self._works:
            try:
                work.wait(timeout)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return True

    def is_completed(self) -> bool:
        return all([work.is_completed() for work in self._works])

    def is_success(self) -> bool:
        return all([work.is_success() for work in self._works])

    def exception(self) -> Optional[BaseException]:
        return next((e for e in (work.exception() for work in self._works)
                     if e is not None), None)

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> List[torch.Tensor]:
        return self._result

    def get_future(self) -> Any:
        future: Any = Future()
        left = [len(self._works)]
        lock = threading.Lock()
        result = self._result

        def one(part: Any) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                failure = self.exception()
                if failure is not None:
                    future.set_exception(failure)
                else:
                    future.set_result(result)

        if not self._works:
            future.set_result(result)
        for work in self._works:
            work.get_future().add_done_callback(one)
        return future

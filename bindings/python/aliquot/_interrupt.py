"""Ctrl-C while the main thread is inside a call of the library.

Python runs signal handlers between bytecodes of the main thread, so one that
waits for a late peer would not see SIGINT.  The interpreter, however, writes
every signal to a wake-up descriptor at once.  A thread reads it: if the call
that was running then has not returned after a moment, it aborts what the call
waits for.  The call fails, KeyboardInterrupt is raised, and the peers get an
error instead of waiting.

A handler of the program's own may mean anything and is left alone; it runs when
the call returns.  The thread starts with the first call that may block on the
main thread; a call costs two stores more.
"""

import os
import signal
import threading
import time
from typing import Any, Optional, Tuple

from ._error import Error, check

GRACE_S = 0.05


class _Guard:
    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.now: Optional[Tuple[Any]] = None
        self.pipe: Optional[Tuple[int, int]] = None
        self.previous = -1
        self.hooked = False

    def start(self) -> None:
        """On the main thread."""
        self.pipe = read, write = os.pipe()
        os.set_blocking(write, False)
        self.previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if not self.hooked:
            os.register_at_fork(after_in_child=self.forget)
            self.hooked = True
        threading.Thread(target=self.watch, args=(read,), daemon=True,
                         name="aliquot-interrupt").start()

    def forget(self) -> None:
        """In a forked child: its signals are none of the parent's business."""
        self.main = threading.get_ident()
        self.now = None
        if self.pipe is None:
            return
        current = signal.set_wakeup_fd(-1)
        if current != self.pipe[1]:
            signal.set_wakeup_fd(current)  # another package's
        for descriptor in self.pipe:
            os.close(descriptor)
        self.pipe = None

    def watch(self, read: int) -> None:
        while True:
            signals = os.read(read, 64)
            call = self.now
            if self.previous != -1:
                try:
                    os.write(self.previous, signals)
                except OSError:
                    pass
            if signal.SIGINT in signals and call is not None and (
                    signal.getsignal(signal.SIGINT) is
                    signal.default_int_handler):
                time.sleep(GRACE_S)
                if self.now is call:
                    _abort(call[0])


def _abort(owner: Any) -> None:
    try:
        owner.abort("interrupted: rank received SIGINT")
    except Error:
        pass  # it has ended meanwhile


_guard = _Guard()


def on_main_thread() -> bool:
    return threading.get_ident() == _guard.main


def guarded(owner: Any, function: Any, *args: Any) -> None:
    """check(function, *args), which may block; Ctrl-C aborts owner."""
    guard = _guard
    if threading.get_ident() != guard.main:
        check(function, *args)
        return
    if guard.pipe is None:
        guard.start()
    guard.now = (owner,)
    try:
        check(function, *args)
    finally:
        guard.now = None

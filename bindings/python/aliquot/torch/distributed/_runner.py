"""The runner: one thread per process that lets asynchronous operations go on
while the program waits for something else, and completes their futures.

A CPU stream is a queue that is run by whoever waits for something of its
context.  A rank that waits elsewhere (in the store, in another process group,
in computing) would withhold what its peers wait for.  While a process group has
asynchronous operations the runner therefore runs them every now and then; it
waits for an operation itself only if somebody holds its future.  It sleeps when
there is nothing to do, and an operation that is waited for at once never meets
it.
"""

import os
import threading
from typing import Any, Dict, List

from ..._error import Error

_TICK_S = 0.001
_LONGEST_S = 0.008
_LINGER = 8  # looks at an idle group before it is let go
_SLICE_NS = 2_000_000


class _Runner:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: Dict[Any, int] = {}
        self.works: List[Any] = []
        self.wake = threading.Event()
        self.started = False

    def add_group(self, group: Any) -> None:
        with self.lock:
            self.groups[group] = 0
        self._wake()

    def add_work(self, work: Any) -> None:
        with self.lock:
            self.works.append(work)
        self._wake()

    def forget(self, group: Any) -> None:
        with self.lock:
            self.groups.pop(group, None)

    def _wake(self) -> None:
        if not self.started:
            self.started = True
            threading.Thread(target=self.run, name="aliquot-runner",
                             daemon=True).start()
        self.wake.set()

    def run(self) -> None:
        tick = _TICK_S
        while True:
            self.wake.clear()
            with self.lock:
                groups, works = list(self.groups), list(self.works)
            moving = [self.poll(group) for group in groups]
            if works:
                self.complete(works)
                tick = _TICK_S
                continue
            idle = not groups
            del groups, works
            if idle:
                self.wake.wait()
                tick = _TICK_S
            else:
                self.wake.wait(tick)
                tick = _TICK_S if any(moving) else min(2 * tick, _LONGEST_S)

    def poll(self, group: Any) -> bool:
        """Whether operations of the group remain."""
        # Cleared before looking: who enqueues afterwards adds the group again.
        group._running = False
        try:
            busy = group._poll()
        except Error:
            busy = False  # whoever waits gets the error
        with self.lock:
            looks = 0 if busy else self.groups.get(group, _LINGER) + 1
            if looks < _LINGER or group._running:
                self.groups[group] = looks
                group._running = True
            else:
                self.groups.pop(group, None)
        return busy

    def complete(self, works: List[Any]) -> None:
        """Waits for the oldest for a moment, then looks at all."""
        works[0]._help(_SLICE_NS)
        for work in works:
            if work.is_completed():
                with self.lock:
                    self.works.remove(work)


_runner = _Runner()


def _after_fork() -> None:
    global _runner
    _runner = _Runner()


os.register_at_fork(after_in_child=_after_fork)


def runner() -> _Runner:
    return _runner

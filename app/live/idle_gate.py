"""Idle moments: whether a request is being answered, and processes stopped while one is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from app.contracts.ports import Clock
from app.process.suspension import Suspension

SETTLE_SECONDS = 0.02
"""After the last answer, time for its bytes to leave before anything is begun."""


class Closed(Exception):
    """The server is shutting down."""


class IdleGate:
    """Thread-safe; began() and ended() are called from the event loop and cost microseconds.

    **Invariant**: while a request is between them, every process of the suspension stands still.
    """

    def __init__(self, suspension: Suspension, *, clock: Clock = time.monotonic) -> None:
        self._suspension = suspension
        self._clock = clock
        self._requests = 0
        self._since = clock()
        self._closed = False
        self._changed = threading.Condition()

    def began(self) -> None:
        with self._changed:
            self._requests += 1
            if self._requests == 1:
                self._suspension.hold()

    def ended(self) -> None:
        with self._changed:
            self._requests -= 1
            if self._requests == 0:
                self._since = self._clock()
                self._suspension.release()
                self._changed.notify_all()

    def wait(self) -> None:
        """Until no request is being answered. Raises Closed."""
        with self._changed:
            while not self._closed:
                settled = self._since + SETTLE_SECONDS - self._clock()
                if self._requests == 0 and settled <= 0:
                    return
                self._changed.wait(settled if self._requests == 0 else None)
        raise Closed

    def rest(self, seconds: float, *, unless: Callable[[], bool]) -> None:
        """Until something is worth looking at: woken by wake(), at the latest after `seconds`.

        Returns at once when `unless()` is true. Raises Closed.
        """
        with self._changed:
            if not self._closed and not unless():
                self._changed.wait(seconds)
            if self._closed:
                raise Closed

    def check(self) -> None:
        """Raises Closed when that is the case: the likely reason of whatever has just failed."""
        if self._closed:
            raise Closed

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End what stands still or runs; whoever waits here gets Closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._suspension.end()

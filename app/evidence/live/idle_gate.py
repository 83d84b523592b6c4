"""Detects idle moments, and stops background processes while a request is being answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from app.contracts.ports import Clock
from app.engine.process.suspension import Suspension

SETTLE_SECONDS = 0.02
"""Pause after the last answer, so that its bytes are sent before a run begins."""


class Closed(Exception):
    """The server is shutting down."""


class IdleGate:
    """Lets background work run only while no request is being answered; thread-safe.

    began() and ended() are called from the event loop and cost microseconds.

    **Invariant**: between began() and ended() every process of the suspension is stopped.
    """

    def __init__(self, suspension: Suspension, *, clock: Clock = time.monotonic) -> None:
        self._suspension = suspension
        self._clock = clock
        self._requests = 0
        self._since = clock()
        self._closed = False
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        # Separate from _changed: only threads with work to do wait here. A thread that wakes at the
        # end of every request would take the interpreter from the next one.
        self._idle = threading.Condition(lock)

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
                self._idle.notify_all()

    def wait(self) -> None:
        """Block until no request is being answered. Raises Closed."""
        with self._changed:
            while not self._closed:
                settled = self._since + SETTLE_SECONDS - self._clock()
                if self._requests == 0 and settled <= 0:
                    return
                self._idle.wait(settled if self._requests == 0 else None)
        raise Closed

    def rest(self, seconds: float, *, unless: Callable[[], bool]) -> None:
        """Block for `seconds` or until `unless()` is true, which wake() checks again.

        Raises Closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or unless(), seconds)
            if self._closed:
                raise Closed

    def check(self) -> None:
        """Raise Closed after close(), which is then the likely cause of a failure."""
        if self._closed:
            raise Closed

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the processes of the suspension; waiting callers raise Closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._idle.notify_all()
        self._suspension.end()

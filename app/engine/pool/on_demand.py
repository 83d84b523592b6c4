"""Groups that start when a request first names them: how many of them may live at a time.

Each is processes of its own with the whole model in them, and every client may name one.
"""

from __future__ import annotations

import math
import threading
from typing import Protocol

from app.contracts.errors import Overloaded


class Startable(Protocol):
    def idle(self) -> bool:
        """Whether no request waits or runs, so that it may be stopped."""

    def stop(self) -> None:
        """End its processes, without waiting for them; its next job starts it again."""


class OnDemand:
    """Thread-safe. At the limit the group that was not used for the longest makes room."""

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._started: list[Startable] = []  # the last one was used last

    def use(self, group: Startable) -> None:
        """To be called before each job. Raises Overloaded when all the others are at work."""
        with self._lock:
            if group in self._started:
                self._started.remove(group)
            elif len(self._started) >= self._limit:
                unused = next((other for other in self._started if other.idle()), None)
                if unused is None:
                    raise Overloaded(
                        f"{self._limit} instance groups that start on demand are at work, "
                        "as many as may at a time",
                        retry_after=1.0,
                        limit=self._limit,
                        received=self._limit + 1,
                    )
                self._started.remove(unused)
                unused.stop()
            self._started.append(group)

    def forget(self, group: Startable) -> None:
        """It has no processes any more."""
        with self._lock:
            if group in self._started:
                self._started.remove(group)

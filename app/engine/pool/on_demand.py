"""Groups that start when a request first names them: how many may live at a time, in what memory.

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

    def resident_bytes(self) -> int:
        """Resident memory of its processes."""

    def stop(self) -> None:
        """End its processes, without waiting for them; its next job starts it again."""


class OnDemand:
    """Thread-safe. At either limit the group that was not used for the longest makes room.

    No further group is started while those that live hold `max_bytes` or more of resident memory;
    what a group will hold is not known before it runs.
    """

    def __init__(self, limit: float = math.inf, max_bytes: float = math.inf) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._started: list[Startable] = []  # the last one was used last

    def use(self, group: Startable) -> None:
        """To be called before each job. Raises Overloaded when all the others are at work."""
        with self._lock:
            if group in self._started:
                self._started.remove(group)
            else:
                self._make_room()
            self._started.append(group)

    def _make_room(self) -> None:
        """For one more group."""
        while reason := self._full():
            unused = next((other for other in self._started if other.idle()), None)
            if unused is None:
                raise reason
            self._started.remove(unused)
            unused.stop()

    def _full(self) -> Overloaded | None:
        if len(self._started) >= self._limit:
            return Overloaded(
                f"{self._limit} instance groups that start on demand are at work, "
                "as many as may at a time",
                retry_after=1.0,
                limit=self._limit,
                received=self._limit + 1,
            )
        held = sum(group.resident_bytes() for group in self._started)
        if held < self._max_bytes:
            return None
        return Overloaded(
            f"the instance groups that start on demand and are at work hold {held} bytes, "
            f"no other starts from {self._max_bytes} on",
            retry_after=1.0,
            limit=self._max_bytes,
            received=held,
        )

    def forget(self, group: Startable) -> None:
        """It has no processes any more."""
        with self._lock:
            if group in self._started:
                self._started.remove(group)

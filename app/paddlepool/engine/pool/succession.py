"""Replaces a worker whose resident memory has grown, without a pause in service."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from paddlepool.contracts.ports import Clock, Worker
from paddlepool.engine.concurrency import in_thread_or_inline

POLL_SECONDS = 0.05
"""Interval between two checks of a worker's memory. A check takes a tenth of the time of a short
run, because the system sums the memory over all processors."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Succession:
    """Opens a successor of one instance's worker when the worker's memory has grown.

    The worker's resident memory may be `smallest_cap` bytes, or 1.5 times what it was at first if
    that is more. Above this cap a successor is opened, while the worker continues to serve. If none
    can be opened, the cap grows by half. Belongs to the event loop.
    """

    name: str
    open_worker: Callable[[], Awaitable[Worker[Any, Any]]]
    smallest_cap: int
    clock: Clock
    _cap: int = field(default=0, init=False)
    _next_check: float = field(default=-math.inf, init=False)
    _successor: asyncio.Future[Worker[Any, Any]] | None = field(default=None, init=False)

    def reset(self, worker: Worker[Any, Any]) -> None:
        """Set the cap for a new worker: 1.5 times its present memory, at least `smallest_cap`."""
        self._cap = max(self.smallest_cap, worker.resident_bytes() * 3 // 2)
        self._next_check = -math.inf

    def check(self, worker: Worker[Any, Any]) -> bool:
        """Begin to open a successor if the worker's memory exceeds the cap.

        Returns whether a successor is open. Reads the memory at most once in POLL_SECONDS. If the
        opening has failed, logs that and raises the cap by half.
        """
        if self._successor is None and self._above_cap(worker):
            self._successor = asyncio.ensure_future(self.open_worker())
        if self._successor is not None and self._successor.done():
            if (error := self._successor.exception()) is None:
                return True
            log.warning("%s: no successor can be opened: %s", self.name, error)
            self._successor = None
            self._cap = self._cap * 3 // 2
        return False

    def _above_cap(self, worker: Worker[Any, Any]) -> bool:
        now = self.clock()
        if now < self._next_check:
            return False
        self._next_check = now + POLL_SECONDS
        return worker.resident_bytes() > self._cap

    def ready(self) -> bool:
        successor = self._successor
        return successor is not None and successor.done() and successor.exception() is None

    def pop(self) -> asyncio.Future[Worker[Any, Any]] | None:
        """Remove and return the successor that is open or being opened; None if there is none.

        The caller must close it. The future may raise the error of the opening.
        """
        successor, self._successor = self._successor, None
        return successor

    async def close(self) -> None:
        """Close the successor, if there is one; waits until its opening has ended."""
        if (successor := self.pop()) is not None:
            await asyncio.wait([successor])
            if successor.exception() is None:
                await in_thread_or_inline(f"{self.name} end", successor.result().close)

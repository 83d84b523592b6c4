"""Fails jobs at their deadline, queued or running, also while every instance is busy."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from app.contracts.errors import DeadlineExceeded, Overloaded
from app.contracts.ports import Clock
from app.contracts.reasons import Rejection
from app.engine.queue.job import Job
from app.engine.queue.running import Running
from app.engine.queue.shape_queues import ShapeQueues


class Deadlines:
    """A thread of its own, from the first job on until it is ended and nothing runs any more.

    Callers hold `lock`, the batcher's. `on_rejected` is called without it.
    """

    def __init__(
        self,
        lock: threading.Lock,
        queues: ShapeQueues,
        running: Running,
        *,
        clock: Clock,
        on_rejected: Callable[[Rejection], None],
    ) -> None:
        self._changed = threading.Condition(lock)
        self._queues = queues
        self._running = running
        self._clock = clock
        self._on_rejected = on_rejected
        self._late: list[Job] = []
        self._ended = False
        self._wake_at = math.inf
        self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)

    def start(self) -> None:
        """Before the first job is in the queue, where nobody else would fail it.

        Raises Overloaded where the system has no thread to give.
        """
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError:
                raise Overloaded("no thread to be had", retry_after=1.0) from None

    def added(self, jobs: Sequence[Job]) -> None:
        """They are in the queue by now."""
        if min(job.deadline for job in jobs) < self._wake_at:
            self._changed.notify()

    def passed(self, job: Job) -> None:
        """One that was taken out of the queue too late to run."""
        self._late.append(job)
        self._changed.notify()

    def left(self) -> None:
        """A batch runs no more."""
        if self._ended:
            self._changed.notify_all()

    def end(self) -> None:
        self._ended = True
        self._changed.notify_all()

    def _watch(self) -> None:
        while self._fail_due():
            pass

    def _fail_due(self) -> bool:
        """Waits where there are none, without a job in its frame; False once there never will be
        any."""
        with self._changed:
            now = self._clock()
            expired = self._late + self._queues.take_expired(now)
            self._late = []
            overdue = self._running.overdue(now)
            if not expired and not overdue:
                if self._ended and not self._running.batches:
                    return False
                self._wake_at = min(self._queues.next_deadline(), self._running.next_deadline())
                self._changed.wait(min(self._wake_at - now, threading.TIMEOUT_MAX))
                return True
        for job in expired:
            self._on_rejected(Rejection.EXPIRED)
            job.fail(DeadlineExceeded("the deadline passed while the job waited in the queue"))
        for job in overdue:
            job.fail(DeadlineExceeded("the deadline passed while the job was running"))
        return True

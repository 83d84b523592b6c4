"""The waiting jobs of one instance group, by priority and shape: which batch may run next."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator

from app.engine.queue.job import Job, ShapeKey
from app.engine.queue.service_time import ServiceTime

QueueKey = tuple[int, ShapeKey]

URGENT, NORMAL = -1, 0
"""Priorities: smaller goes first. Urgent work is not counted against the limit of the queue."""


class ShapeQueues:
    """First come, first served within a priority; no lock, no clock, no thread of its own.

    A queue holds the jobs of one priority and shape in order of arrival. The queue whose head is
    oldest goes first. A queue of lower priority (a larger number) is not looked at while any
    job of higher priority waits, and never fills up a batch of one.
    """

    def __init__(self, *, max_rows: int, max_delay: float) -> None:
        self._max_rows = max_rows
        self._max_delay = max_delay
        self._queues: dict[QueueKey, deque[tuple[int, Job]]] = {}
        self._sequence = itertools.count()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        return (job for queue in self._queues.values() for _, job in queue)

    def add(self, job: Job) -> None:
        queue = self._queues.setdefault((job.priority, job.key), deque())
        queue.append((next(self._sequence), job))
        self._size += 1

    def remove(self, job: Job) -> bool:
        """Take a job out; False when it is not here (any more)."""
        queue = self._queues.get((job.priority, job.key), deque())
        for position, (_, waiting) in enumerate(queue):
            if waiting is job:
                del queue[position]
                self._size -= 1
                self._forget_if_empty((job.priority, job.key))
                return True
        return False

    def take_expired(self, now: float) -> list[Job]:
        """Take out every job whose deadline has come."""
        expired = [job for job in self if job.deadline <= now]
        for job in expired:
            self.remove(job)
        return expired

    def next_deadline(self) -> float:
        return min((job.deadline for job in self), default=math.inf)

    def next_batch(self, now: float) -> tuple[list[Job], float]:
        """The jobs that may run now, still in their queue, and when to ask again if there are none.

        A queue is ready when its next batch is full or its head has waited the delay.
        """
        ask_again = math.inf
        if not self._queues:
            return [], ask_again
        urgent = min(priority for priority, _ in self._queues)
        candidates = sorted(
            (queue for queue in self._queues if queue[0] == urgent),
            key=lambda queue: self._queues[queue][0][0],
        )
        for queue in candidates:
            jobs, full = self._head_of(queue)
            ready_at = jobs[0].enqueued + self._max_delay
            if full or ready_at <= now:
                return jobs, now
            ask_again = min(ask_again, ready_at)
        return [], ask_again

    def _head_of(self, queue: QueueKey) -> tuple[list[Job], bool]:
        jobs: list[Job] = []
        rows = 0
        for _, job in self._queues[queue]:
            if jobs and rows + job.rows > self._max_rows:
                return jobs, True
            jobs.append(job)
            rows += job.rows
        return jobs, rows >= self._max_rows

    def least_urgent(self, than: int) -> Job | None:
        """The youngest job of the lowest priority below `than`: the first to be shed."""
        lowest = max((priority for priority, _ in self._queues), default=than)
        if lowest <= than:
            return None
        tails = (queue[-1] for key, queue in self._queues.items() if key[0] == lowest)
        return max(tails, key=lambda entry: entry[0])[1]

    def counted(self, priority: float = math.inf) -> int:
        """Jobs that count against the limit, of this priority or a higher one."""
        return sum(
            len(queue) for (other, _), queue in self._queues.items() if NORMAL <= other <= priority
        )

    def seconds_before(
        self, priority: int, joining: ShapeKey | None, rows: int, times: ServiceTime
    ) -> float:
        """Predictor seconds of the runs that go before a job of this priority and so many rows,
        were it added now; `joining` is its shape, None where that is not known."""
        seconds = 0.0
        for (other, key), queue in self._queues.items():
            if other > priority:
                continue
            waiting = sum(job.rows for _, job in queue)
            if (other, key) == (priority, joining):
                # In its own queue it shares the last run, unless that one is full already.
                runs = (waiting + rows - 1) // self._max_rows
            else:
                runs = -(-waiting // self._max_rows)
            seconds += runs * times.expected(key)
        return seconds

    def _forget_if_empty(self, queue: QueueKey) -> None:
        if not self._queues[queue]:
            del self._queues[queue]

"""Who may wait in the queue: whoever could not be served in time is told so at once.

A job is admitted only if, by the moving service time, it can finish before its deadline. One
exception keeps a wrong estimate from refusing everyone for ever: a job that would run at once is
always admitted, and its run corrects the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.contracts.errors import DeadlineExceeded, Overloaded, PaddlepoolError
from app.engine.queue.job import Job
from app.engine.queue.service_time import ServiceTime
from app.engine.queue.shape_queues import ShapeQueues

NORMAL = 0
"""The priority of requests that name none."""


class Refused(Exception):
    """`reason` is one of reasons.REJECTIONS, `error` what the caller is told."""

    def __init__(self, reason: str, error: PaddlepoolError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """What the instances are doing at a moment: `live` take batches, the runs of `running` still
    need so many seconds in all, and `free` says whether one would take a job at once."""

    live: int
    running: float
    free: bool


class Admission:
    """Reads the queues and changes nothing in them. Callers hold the batcher's lock.

    A place is held for each job that is still being made, such as one whose picture is being
    opened: it must find room when it is there, and whoever comes later waits behind it.
    """

    def __init__(self, queues: ShapeQueues, times: ServiceTime, *, max_queue: int) -> None:
        self._queues = queues
        self._times = times
        self._max_queue = max_queue
        self.reservations = 0

    def of_job(self, job: Job, now: float, instances: Instances) -> Job | None:
        """Raises Refused; returns the job of lower priority that must go for it, if one must."""
        if job.deadline <= now:
            late = DeadlineExceeded("the deadline had passed before the job could be queued")
            raise Refused("deadline", late)
        wait = 0.0
        if self._queues or not instances.free:
            before = self._queues.seconds_before(job, self._times)
            wait = (instances.running + before) / max(1, instances.live)
            self._in_time(wait, wait + self._times.expected(job.key), job.deadline - now)
        if len(self._queues) < self._max_queue:
            return None
        shed = self._queues.least_urgent(job.priority)
        if shed is None:
            raise self._full(len(self._queues), wait)
        return shed

    def of_reservation(self, deadline: float, now: float, instances: Instances) -> None:
        """Raises Refused when a job that is still to be made would find no room or no time."""
        if not self._queues and not self.reservations and instances.free:
            return
        run = self._times.overall()
        before = self._queues.seconds(NORMAL, self._times) + self.reservations * run
        wait = (instances.running + before) / max(1, instances.live)
        self._in_time(wait, wait + run, deadline - now)
        taken = len(self._queues) + self.reservations
        if taken >= self._max_queue and self._queues.least_urgent(NORMAL) is None:
            raise self._full(taken, wait)

    def _in_time(self, wait: float, needed: float, left: float) -> None:
        if wait > 0 and needed > left:
            hopeless = Overloaded(
                f"the queue needs about {needed:.2f} s, the deadline leaves {left:.2f} s",
                retry_after=wait,
                limit=round(left, 3),
                received=round(needed, 3),
            )
            raise Refused("deadline", hopeless)

    def _full(self, waiting: int, wait: float) -> Refused:
        full = Overloaded(
            f"the queue is full: {waiting} jobs wait, limit {self._max_queue}",
            retry_after=max(wait, self._times.overall()),
            limit=self._max_queue,
            received=waiting + 1,
        )
        return Refused("queue_full", full)

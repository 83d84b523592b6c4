"""Admission control: rejects a job if the queue is full or it cannot finish before its deadline.

The end of a job is estimated from the moving averages of run times. The estimate counts the runs
under way, and the jobs and reservations, of any caller, that are scheduled ahead of the job. A job
for which an instance is free is admitted whatever the estimate, so that its run can correct an
average that is too high.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.errors import DeadlineExceeded, Overloaded, PaddlepoolError
from paddlepool.contracts.reasons import Rejection
from paddlepool.engine.queue.job import Job, ShapeKey
from paddlepool.engine.queue.shape_queues import NORMAL, ServiceTime, ShapeQueues


class Instances(Protocol):
    """The facts about the instances of one batcher that admission uses."""

    @property
    def live(self) -> int:
        """Number of instances that take batches."""

    @property
    def free(self) -> int:
        """Number of instances that would take a batch immediately."""

    def seconds_left(self, now: float) -> float:
        """Total seconds that the runs under way still need, from their usual duration."""


class Reservation:
    """A place in the queue for a job in preparation, for example while its picture is decoded.

    No other job gets the place. As a context manager, it is released at the end of its block.
    """

    __slots__ = ("_reservations", "caller")

    def __init__(self, reservations: set[Reservation], caller: str) -> None:
        self.caller = caller
        self._reservations = reservations
        reservations.add(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the place; does nothing if it was released, or a job has taken it."""
        self._reservations.discard(self)


def too_slow(needed: float, left: float, *, retry_after: float) -> Overloaded:
    """Return the error of a job or request that takes `needed` seconds and has only `left`."""
    return Overloaded(
        f"the queue needs about {needed:.2f} s, the deadline leaves {left:.2f} s",
        retry_after=retry_after,
        limit=round(left, 3),
        received=round(needed, 3),
    )


def turns_ahead(waiting: Mapping[str, int], caller: str) -> int:
    """Return how many waiting requests are served before a new one of `caller`.

    `waiting` has the number of waiting requests for each caller. Callers are served in rotation: if
    this caller has n of them, these n and up to n + 1 of each other caller are served before.
    """
    own = waiting.get(caller, 0)
    others = [count for name, count in waiting.items() if name != caller]
    return own + sum([min(count, own + 1) for count in others])


@dataclass(slots=True, eq=False)
class Admission:
    """Decides which jobs enter the queues of one batcher.

    **Invariant**: there is always room for the job of a reservation. Reservations and jobs share
    `max_queue` places. When these are taken, a caller without a job or reservation here may still
    add one. There are `max_queue` further places for such callers, so that no caller can fill the
    queue for the others. Jobs of URGENT priority finish requests that were admitted before: they
    are not counted, and are rejected only if their deadline has passed.

    `on_rejected` is called with the reason before a method raises an error.
    """

    queues: ShapeQueues
    times: ServiceTime
    max_queue: int
    on_rejected: Callable[[Rejection], None]
    instances: Instances
    reservations: set[Reservation] = field(default_factory=set, init=False)

    def admit(
        self, jobs: Sequence[Job], now: float, reservation: Reservation | None, *, following: bool
    ) -> list[Job]:
        """Queue the jobs; the first takes the place of the reservation, which ends.

        Raises DeadlineExceeded if a deadline has passed, and Overloaded if the queue is full or a
        job would be late; no job is queued then. Only the deadline is checked for the first job
        with a reservation, for urgent jobs, and for jobs that replace ended jobs of their request
        (`following`). Returns the jobs of lower priority that were removed to make room.
        """
        reserved = reservation is not None and reservation in self.reservations
        if reservation is not None:
            reservation.release()
        for index, job in enumerate(jobs):
            try:
                if job.deadline <= now:
                    self.on_rejected(Rejection.DEADLINE)
                    raise DeadlineExceeded("the deadline had passed before the job could be queued")
                if not (following or (reserved and index == 0)):
                    ahead = 0 if reserved else self._reservations_ahead(job.caller)
                    self._check_job(job, now, ahead)
            except PaddlepoolError:
                self.queues.remove(*jobs[:index])
                raise
            self.queues.add(job)
        if len(self.queues) + len(self.reservations) <= self.max_queue:
            return []
        return [shed for job in jobs if (shed := self._make_room(job.priority))]

    def _make_room(self, priority: int) -> Job | None:
        """Remove a less urgent job if a job just queued at this `priority` overfills the queue.

        Returns the removed job. Returns None if there is room, if no queued job is less urgent, or
        if the priority is URGENT.
        """
        if priority < NORMAL or self.queues.counted() + len(self.reservations) <= self.max_queue:
            return None
        if (shed := self.queues.least_urgent(priority)) is not None:
            self.queues.remove(shed)
        return shed

    def reserve(self, deadline: float, now: float) -> Reservation:
        """Reserve a place for a job of the current caller.

        Raises Overloaded if the queue is full or the job could not finish before its deadline.
        """
        caller = CALLER.get().name
        ahead = self._reservations_ahead(caller)
        at_once = not ahead and self._at_once(NORMAL, None, 1)
        wait = 0.0 if at_once else self._wait(NORMAL, None, 1, caller, ahead, now)
        self._check(NORMAL, None, caller, wait, deadline - now)
        return Reservation(self.reservations, caller)

    def _check_job(self, job: Job, now: float, ahead: int) -> None:
        """Raise Overloaded if the queue is full or the job would be late, unless it is urgent.

        `ahead` is the number of reservations whose jobs will run before this one: none if the
        job's request had a reservation itself.
        """
        if job.priority < NORMAL:
            return
        priority, key, caller = job.priority, job.key, job.caller
        at_once = self._at_once(priority, key, job.rows)
        wait = 0.0 if at_once else self._wait(priority, key, job.rows, caller, ahead, now)
        self._check(priority, key, caller, wait, job.deadline - now)

    def _at_once(self, priority: int, key: ShapeKey | None, rows: int) -> bool:
        """Whether free instances suffice for a new job and the queued jobs of its priority.

        False if that is unknown: see ShapeQueues.runs().
        """
        free = self.instances.free
        return free > 0 and (not self.queues or self.queues.runs(priority, key, rows) <= free)

    def _reservations_ahead(self, caller: str) -> int:
        """Number of reservations whose jobs will run before the next job of the caller."""
        if not self.reservations:
            return 0
        return turns_ahead(Counter(reservation.caller for reservation in self.reservations), caller)

    def _has_no_job(self, caller: str) -> bool:
        reserved = any(reservation.caller == caller for reservation in self.reservations)
        return not reserved and not self.queues.counts_job_of(caller)

    def _wait(
        self, priority: int, key: ShapeKey | None, rows: int, caller: str, ahead: int, now: float
    ) -> float:
        """Seconds until a job begins, after running jobs, `ahead` reservations and queued jobs.

        `key` is its shape, None if unknown.
        """
        before = self.queues.seconds_before(priority, key, rows, caller, self.times)
        before += ahead * self.times.expected(None)
        if self.queues or not self.instances.free:
            before += self.instances.seconds_left(now)
        return before / max(1, self.instances.live)

    def _check(
        self, priority: int, key: ShapeKey | None, caller: str, wait: float, left: float
    ) -> None:
        """Raise Overloaded if `wait` and the run take more than `left` s, or the queue is full.

        With a `wait` of 0, time is not checked. If the queue is full, jobs of lower priority than
        `priority` do not count, because one of them can be removed. A caller without a job or
        reservation has twice the places.
        """
        run = self.times.expected(key)
        if wait > 0 and wait + run > left:
            self.on_rejected(Rejection.DEADLINE)
            raise too_slow(wait + run, left, retry_after=wait)
        limit = self.max_queue
        if len(self.queues) + len(self.reservations) < limit:
            return  # there is room, whatever the priorities
        places = self.queues.counted(priority) + len(self.reservations)
        if places >= limit and self._has_no_job(caller):
            limit *= 2
        if places >= limit:
            self.on_rejected(Rejection.QUEUE_FULL)
            raise Overloaded(
                f"the queue is full: {places} jobs wait, limit {limit}",
                retry_after=max(wait, self.times.expected(None)),
                limit=limit,
                received=places + 1,
            )

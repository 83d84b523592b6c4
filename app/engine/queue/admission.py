"""Who may wait in the queue: whoever could not be served in time is refused at once.

A job is admitted only if, by the moving service time, it can finish before its deadline. One
exception keeps a wrong estimate from refusing everyone for ever: a job that would run at once is
always admitted, and its run corrects the estimate.

What counts before a job is what goes before it: of other callers no more than its turn lets pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from app.contracts.caller import CALLER
from app.contracts.errors import DeadlineExceeded, Overloaded, PaddlepoolError, TooManyInputs
from app.contracts.reasons import Rejection
from app.engine.queue.job import Job, ShapeKey
from app.engine.queue.running import Instances
from app.engine.queue.shape_queues import NORMAL, ServiceTime, ShapeQueues


class Refused(Exception):
    """`reason` is counted, `error` is for the caller."""

    def __init__(self, reason: Rejection, error: PaddlepoolError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class Reservation:
    """A place in the queue for a job that is still being made, such as one whose picture is being
    opened. Nobody else's job takes it. As a context manager it ends with its block."""

    __slots__ = ("_among", "caller")

    def __init__(self, among: set[Reservation | None]) -> None:
        self.caller = CALLER.get().name
        self._among = among
        among.add(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the place up, if no job has taken it."""
        self._among.discard(self)


class Admission:
    """Decides what enters the queues of one batcher.

    **Invariant**: reservations and the jobs of normal priority together never exceed `max_queue`,
    so the job of a reservation always finds room; beside them, callers who have nothing here find a
    place each, as many as `max_queue` again, so that nobody can fill the queue for the others.
    Urgent work has been paid for: it is not counted and never refused.
    """

    def __init__(self, queues: ShapeQueues, times: ServiceTime, *, max_queue: int) -> None:
        self._queues = queues
        self._times = times
        self._max_queue = max_queue
        self.reservations: set[Reservation | None] = set()

    def admit(
        self,
        jobs: Sequence[Job],
        now: float,
        instances: Instances,
        reservation: Reservation | None = None,
    ) -> list[Job]:
        """Put the jobs into their queues, the first in the place of the reservation, which ends.

        That one was promised room and time: whoever came later does not count against it. Returns
        those of lower priority that had to go for them. Raises Refused, with the queues as they
        were before.
        """
        reserved = reservation in self.reservations
        self.reservations -= {reservation}
        self._check_number(jobs)
        for place, job in enumerate(jobs):
            try:
                if reserved and place == 0:
                    _check_deadline(job, now)
                else:
                    reserving = 0 if reserved else self._reserving(job.caller)
                    self._check(job, now, instances, reserving=reserving)
            except Refused:
                self._queues.remove(*jobs[:place])
                raise
            self._queues.add(job)
        return [shed for job in jobs if (shed := self._make_room(job.priority))]

    def _make_room(self, priority: int) -> Job | None:
        """Take out the job that one of this priority has displaced, if it has."""
        full = priority >= NORMAL and self._taken() > self._max_queue
        unlucky = self._queues.least_urgent(priority) if full else None
        if unlucky is not None:
            self._queues.remove(unlucky)
        return unlucky

    def reserve(self, deadline: float, now: float, instances: Instances) -> Reservation:
        """Raises Refused when a job that is still to be made would find no room or no time."""
        if self._queues or self.reservations or not instances.free:
            caller = CALLER.get().name
            wait = self._wait(NORMAL, None, 1, caller, self._reserving(caller), instances)
            self._check_time(wait, self._times.overall(), deadline - now)
            self._check_room(NORMAL, wait, caller)
        return Reservation(self.reservations)

    def _check_number(self, jobs: Sequence[Job]) -> None:
        """Raises Refused for more jobs than an empty queue has places: waiting would not help."""
        if len(jobs) > self._max_queue and jobs[0].priority >= NORMAL:
            endless = TooManyInputs(
                f"the request makes {len(jobs)} jobs; the limit is {self._max_queue}, all the "
                "places of the queue",
                limit=self._max_queue,
                received=len(jobs),
            )
            raise Refused(Rejection.QUEUE_FULL, endless)

    def _check(self, job: Job, now: float, instances: Instances, *, reserving: int) -> None:
        """Raises Refused. `reserving`: how many reservations go before the job; those made before
        its own did, and are jobs by now or come behind it."""
        _check_deadline(job, now)
        if job.priority < NORMAL:
            return
        wait = 0.0
        if self._queues or not instances.free:
            wait = self._wait(job.priority, job.key, job.rows, job.caller, reserving, instances)
            self._check_time(wait, self._times.expected(job.key), job.deadline - now)
        self._check_room(job.priority, wait, job.caller)

    def _taken(self) -> int:
        return self._queues.counted() + len(self.reservations)

    def _reserving(self, caller: str) -> int:
        """How many reservations go before the caller's next: of others as many as it has itself,
        and the one whose turn it is."""
        held = Counter(each.caller for each in self.reservations if each is not None)
        own = held.pop(caller, 0)
        return own + sum(min(count, own + 1) for count in held.values())

    def _has_nothing(self, caller: str) -> bool:
        reserved = any(each is not None and each.caller == caller for each in self.reservations)
        return not reserved and not self._queues.callers()[caller]

    def _wait(
        self,
        priority: int,
        key: ShapeKey | None,
        rows: int,
        caller: str,
        reserving: int,
        instances: Instances,
    ) -> float:
        """Seconds until a job of this shape would begin; `key` is None where it is not known."""
        before = self._queues.seconds_before(priority, key, rows, caller, self._times)
        before += reserving * self._times.overall()
        return (instances.running + before) / max(1, instances.live)

    def _check_time(self, wait: float, run: float, left: float) -> None:
        if wait > 0 and wait + run > left:
            hopeless = Overloaded(
                f"the queue needs about {wait + run:.2f} s, the deadline leaves {left:.2f} s",
                retry_after=wait,
                limit=round(left, 3),
                received=round(wait + run, 3),
            )
            raise Refused(Rejection.DEADLINE, hopeless)

    def _check_room(self, priority: int, wait: float, caller: str) -> None:
        """Jobs of lower priority do not count: the least urgent of them makes room."""
        taken = self._queues.counted(priority) + len(self.reservations)
        limit = self._max_queue
        if taken >= limit and self._has_nothing(caller):
            limit *= 2
        if taken >= limit:
            full = Overloaded(
                f"the queue is full: {taken} jobs wait, limit {limit}",
                retry_after=max(wait, self._times.overall()),
                limit=limit,
                received=taken + 1,
            )
            raise Refused(Rejection.QUEUE_FULL, full)


def _check_deadline(job: Job, now: float) -> None:
    """Raises Refused."""
    if job.deadline <= now:
        late = DeadlineExceeded("the deadline had passed before the job could be queued")
        raise Refused(Rejection.DEADLINE, late)

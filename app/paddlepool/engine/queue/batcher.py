"""The dynamic batcher: one bounded queue in front of the instances of one group.

                            ┌──────────── requeued, or split ◄────────────┐
submit ──► admission ──► queues ──► dispatch (a free instance) ──► run ──► finished
              │             ├── cancelled by the client: leaves its queue at once
              │             ├── deadline passed: failed on time by a timer
         Overloaded         └── shed for a job of higher priority when the queue is full
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from paddlepool.contracts.errors import DeadlineExceeded, Overloaded, PaddlepoolError
from paddlepool.contracts.ports import Clock
from paddlepool.contracts.reasons import Rejection
from paddlepool.engine.queue.admission import Admission, Reservation
from paddlepool.engine.queue.job import INLINE_BYTES, Batch, Job, ShapeKey
from paddlepool.engine.queue.shape_queues import ServiceTime, ShapeQueues

SHORT_RUN_SECONDS = 0.1
"""A batch with a longer run is not sent to a busy instance: nothing measurable would be gained,
and another instance may be free first."""

SMALL_SECONDS = 1.0
"""For this time after a job that is not `large`, a batch of `large` jobs has one job or up to half
the rows, and is not sent to a busy instance. The next job that is not `large` thus waits for fewer
and shorter runs."""


TIMER_SECONDS = 0.001
"""Resolution of the event loop's timers, by which a deadline's timer may come early."""


class Consumer(Protocol):
    """What the batcher needs of an instance."""

    def healthy(self) -> bool:
        """Whether the instance can run a batch now. If not, it has left the batcher on return."""

    def has_room(self) -> bool:
        """Whether the instance runs one batch and accepts a second one, to run after it."""

    def execute(self, batch: Batch) -> None:
        """Begin to run the batch, without waiting for it; must not raise."""


@dataclass(eq=False, kw_only=True)
class Batcher:
    """Queues jobs and hands them to instances in batches.

    Belongs to the event loop; only `live`, `depth` and `inflight` may be read in other threads.

    **Invariants**: no instance gets a job that is cancelled or past its deadline; the future of
    every admitted job is completed, whatever happens to other jobs; a normal job never waits behind
    a job of low priority that no instance has taken.

    A batch has at most `max_rows` rows. A job waits up to `max_delay` seconds for others that fill
    its batch. The queue has `max_queue` places: see Admission. `on_rejected` is called with the
    reason of each rejected submit() or reserve(), and of each queued job that expires, is cancelled
    or is dropped for a job of higher priority. `on_failed` is called for each admitted job that
    fails or is cancelled, with the seconds since it was queued.
    """

    max_rows: int
    max_delay: float
    max_queue: int
    clock: Clock
    on_rejected: Callable[[Rejection], None]
    on_failed: Callable[[float], None] = lambda _seconds: None

    def __post_init__(self) -> None:
        self._queues = ShapeQueues(max_rows=self.max_rows, max_delay=self.max_delay)
        # All batches under way; one that was requeued still counts as running.
        self._running: set[Batch] = set()
        self._requeued: deque[Batch] = deque()
        self._times = ServiceTime()
        self._admission = Admission(
            self._queues, self._times, self.max_queue, self.on_rejected, self
        )
        self._closed_with: PaddlepoolError | None = None
        self._consumers: list[Consumer] = []
        self._free: list[Consumer] = []
        self._dispatching = self._collecting = False
        self._dispatch_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._next_deadline = math.inf
        self._small_until = -math.inf

    def reserve(self, deadline: float) -> Reservation:
        """Hold a place for a job in preparation, until the job is submitted or the place released.

        A request is thus rejected before its picture is decoded. Raises Overloaded if the queue is
        full or the job could not finish before its deadline, and the error that close() got.
        """
        now = self.clock()
        self._prepare_for(1)
        return self._admission.reserve(deadline, now)

    def submit(
        self, *jobs: Job, reservation: Reservation | None = None, following: bool = False
    ) -> None:
        """Queue all of the jobs or none, in one step so that jobs of one request share batches.

        The first job takes the place of the reservation, which then ends. With `following`, the
        jobs replace ended jobs of their request, so the only check is that their deadlines have not
        passed. Queued jobs of lower priority may be dropped to make room; they fail with
        Overloaded. Unless the first job is `large`, batches of `large` jobs are smaller for the
        next SMALL_SECONDS. Raises Overloaded, DeadlineExceeded, or the error that close() got.
        """
        now = self.clock()
        self._prepare_for(len(jobs) - (reservation in self._admission.reservations))
        shed = self._admission.admit(jobs, now, reservation, following=following)
        if not jobs[0].large:
            self._small_until = now + SMALL_SECONDS
        for job in jobs:
            job.future.add_done_callback(partial(self._on_job_done, job))
            self._arm_deadline(job.deadline)
        for job in shed:
            self.on_rejected(Rejection.SHED)
            seconds = sum(self._times.expected(waiting.key) for waiting in self._queues)
            wait = seconds / max(1, self.live)
            job.fail(Overloaded("dropped for a job of higher priority", retry_after=wait))
        if self.max_rows == 1:
            self.dispatch()
        elif not self._collecting:  # jobs of requests that have arrived together share batches
            self._collecting = True
            asyncio.get_running_loop().call_soon(self.dispatch)

    def _prepare_for(self, jobs: int) -> None:
        """Dispatch the jobs that wait for the next dispatch if `jobs` more do not fit.

        Raises the error that close() got, if it was called.
        """
        if self._closed_with is not None:
            self.on_rejected(Rejection.NOT_READY)
            raise self._closed_with.without_traceback()
        places = len(self._queues) + len(self._admission.reservations) + jobs
        if self._collecting and places > self.max_queue:
            self.dispatch()

    def join(self, consumer: Consumer) -> None:
        """Add an instance as free, and dispatch."""
        self._consumers.append(consumer)
        self.offer(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Remove an instance, which takes no further batch; does nothing if it has left already."""
        for consumers in (self._consumers, self._free):
            if consumer in consumers:
                consumers.remove(consumer)

    def offer(self, consumer: Consumer) -> None:
        """Mark an instance as free and dispatch; does nothing if it has left."""
        if consumer in self._consumers:
            self._free.append(consumer)
            self.dispatch()

    def dispatch(self) -> None:
        """Hand over the batches that may run now, and set a timer for those that may run later.

        execute() may call this method again for a batch that it could not send. Such a nested call
        returns at once and the outer loop continues, so the recursion stays shallow.
        """
        if self._dispatching:
            return
        self._dispatching, self._collecting = True, False
        try:
            while self._closed_with is None and self._dispatch_one():
                pass
        finally:
            self._dispatching = False

    def _dispatch_one(self) -> bool:
        """Hand over one batch; False if none may run now or no instance can take it."""
        if not self._free and self._queues.rows < self.max_rows:
            return False  # a busy instance receives only a full batch
        now = self.clock()
        jobs, retry_at = self._queues.next_batch(now, free=len(self._free))
        if jobs and jobs[0].large and now < self._small_until:
            jobs = self._half(jobs)
        if not jobs and not self._requeued:
            self._schedule_dispatch(retry_at - now)
            return False
        free = self._pop_free()
        # A batch that was requeued waits for a free instance, and goes before those in the queue.
        consumer = free or (None if self._requeued else self._consumer_with_room(jobs))
        if consumer is None:
            return False
        if batch := self._resume(now) or self._start(jobs, now):
            consumer.execute(batch)
        elif free is not None:
            self._free.append(free)
        return True

    def _half(self, jobs: list[Job]) -> list[Job]:
        """Return the first job, and those after it as long as all fit into half of a batch."""
        rows = itertools.accumulate(job.rows for job in jobs)
        fitting = sum(total <= self.max_rows // 2 for total in rows)
        return jobs[: max(1, fitting)]

    def _pop_free(self) -> Consumer | None:
        """Remove and return the healthy instance that became free last, whose memory is warm."""
        while self._free:
            if self._free[-1].healthy():
                return self._free.pop()
        return None

    def _consumer_with_room(self, jobs: list[Job]) -> Consumer | None:
        """Return a busy instance that may receive these jobs before its run has ended, or None.

        Jobs are sent early only if they fill a batch, have few bytes and are known to run for a
        short time, and not if they are `large` while small requests arrive.
        """
        full = jobs and sum(job.rows for job in jobs) >= self.max_rows
        if not full or sum(job.nbytes for job in jobs) > INLINE_BYTES:
            return None
        if not 0.0 < self._times.expected(jobs[0].key) < SHORT_RUN_SECONDS:
            return None
        if self.clock() < self._small_until and all(job.large for job in jobs):
            return None
        return next((consumer for consumer in self._consumers if consumer.has_room()), None)

    def _schedule_dispatch(self, seconds: float) -> None:
        if self._dispatch_timer is not None:
            self._dispatch_timer.cancel()
            self._dispatch_timer = None
        if seconds < math.inf:
            self._dispatch_timer = asyncio.get_running_loop().call_later(seconds, self.dispatch)

    def _start(self, jobs: list[Job], now: float) -> Batch | None:
        started = []
        for job in jobs:
            self._queues.take(job)
            if job.future.cancelled():
                self.on_rejected(self._why_cancelled(job))
            elif job.deadline <= now:
                self._expire(job)
            elif not job.future.done():
                started.append(job)
        if not started:
            return None
        expected = self._times.expected(started[0].key)
        batch = Batch(jobs=tuple(started), started=now, expected_seconds=expected)
        self._running.add(batch)
        return batch

    def _resume(self, now: float) -> Batch | None:
        """Return the next requeued batch, reduced to its unfinished jobs; None if there is none."""
        while self._requeued:
            batch = self._requeued.popleft()
            self._running.discard(batch)
            if jobs := tuple(job for job in batch.jobs if not job.future.done()):
                batch = replace(batch, jobs=jobs, started=now)
                self._running.add(batch)
                return batch
        return None

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """Record that the run of a batch has ended, after `seconds`; None if it failed."""
        self._running.discard(batch)
        if seconds is not None:
            self._times.record(batch.key, seconds)

    def requeue(self, *batches: Batch) -> None:
        """Take back batches, which go before queued jobs; if closed, fail their jobs instead."""
        if self._closed_with is None:
            self._requeued.extend(batches)
            self.dispatch()
            return
        self._running.difference_update(batches)
        for job in (job for batch in batches for job in batch.jobs):
            job.fail(self._closed_with)

    def requeue_split(self, batch: Batch) -> None:
        """Take back a batch whose run failed, as one batch for each of its jobs."""
        batches = [replace(batch, jobs=(job,)) for job in batch.jobs]
        self._running.discard(batch)
        self._running.update(batches)
        self.requeue(*batches)

    def record_run(self, key: ShapeKey, seconds: float) -> None:
        """Record the seconds of a run that no job caused, such as a warm-up."""
        self._times.record(key, seconds)

    @property
    def closed(self) -> bool:
        return self._closed_with is not None

    @property
    def live(self) -> int:
        """Number of instances that take batches."""
        return len(self._consumers)

    @property
    def free(self) -> int:
        """Number of instances that would take a batch immediately."""
        return max(len(self._free), len(self._consumers) - len(self._running))

    def seconds_left(self, now: float) -> float:
        """Total seconds that the runs under way still need, from their usual duration."""
        ends = [batch.started + batch.expected_seconds for batch in self._running]
        return sum([max(0.0, end - now) for end in ends])

    def backlog_seconds(self) -> float:
        """Return the estimated total seconds of work in the jobs that wait or run."""
        return self._queues.seconds(self._times) + self.seconds_left(self.clock())

    @property
    def depth(self) -> int:
        return len(self._queues)

    @property
    def idle(self) -> bool:
        """Whether no job waits or runs, and no place is reserved."""
        return not (self._queues or self._running or self._admission.reservations)

    @property
    def inflight(self) -> int:
        """Number of jobs that run, or wait to be run again."""
        return len(self._running_jobs())

    def _running_jobs(self) -> list[Job]:
        return [job for batch in tuple(self._running) for job in batch.jobs]

    def close(self, error: PaddlepoolError) -> None:
        """Fail all waiting jobs and reject later ones, each with a copy of the error.

        Jobs that are running still get their results.
        """
        self._closed_with = error
        self._schedule_dispatch(math.inf)
        for job in self._queues.take_expired(math.inf):
            job.fail(error)
        requeued = tuple(self._requeued)
        self._requeued.clear()
        self.requeue(*requeued)

    def _arm_deadline(self, deadline: float) -> None:
        """Set the deadline timer to this deadline, unless it is set to an earlier one."""
        if deadline >= self._next_deadline:
            return
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._next_deadline = deadline
        wait = max(0.0, deadline - self.clock())
        self._deadline_timer = asyncio.get_running_loop().call_later(wait, self._fail_due)

    def _fail_due(self) -> None:
        """Fail every job whose deadline has come, queued or running."""
        self._deadline_timer, self._next_deadline = None, math.inf
        now = self.clock()
        for job in self._queues.take_expired(now):
            self._expire(job)
        next_deadline = self._queues.next_deadline()
        for job in self._running_jobs():
            if job.deadline <= now:
                job.fail(DeadlineExceeded("the deadline passed while the job was running"))
            if not job.future.done():
                next_deadline = min(next_deadline, job.deadline)
        self._arm_deadline(next_deadline)

    def _expire(self, job: Job) -> None:
        # The future is cancelled already if the timer of its request came first.
        if job.future.cancelled() or not job.future.done():
            self.on_rejected(Rejection.EXPIRED)
            job.fail(DeadlineExceeded("the deadline passed while the job waited in the queue"))

    def _why_cancelled(self, job: Job) -> Rejection:
        """Return EXPIRED if the job was cancelled because of its deadline, else CANCELLED."""
        due = self.clock() >= job.deadline - TIMER_SECONDS
        return Rejection.EXPIRED if due else Rejection.CANCELLED

    def _on_job_done(self, job: Job, future: asyncio.Future[object]) -> None:
        """Report a failed or cancelled job, and remove a cancelled one from its queue."""
        if future.cancelled() and self._queues.remove(job):
            self.on_rejected(self._why_cancelled(job))
        if future.cancelled() or future.exception() is not None:
            self.on_failed(self.clock() - job.enqueued)

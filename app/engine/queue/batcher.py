"""The dynamic batcher: one bounded queue in front of the instances of one group.

                            ┌────────── given back, or divided ◄──────────┐
submit ──► admission ──► queues ──► take (an idle instance) ──► run ──► finished
              │             ├── cancelled by the client: leaves its queue at once
              │             ├── deadline passed: failed on time by a thread of its own
         Overloaded         └── shed for a job of higher priority when the queue is full
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from app.contracts.errors import Overloaded, PaddlepoolError
from app.contracts.ports import Clock
from app.contracts.reasons import Rejection
from app.engine.queue.admission import Admission, Refused, Reservation
from app.engine.queue.deadlines import Deadlines
from app.engine.queue.job import Batch, Job, ShapeKey
from app.engine.queue.running import Running
from app.engine.queue.shape_queues import ServiceTime, ShapeQueues

HEALTH_SECONDS = 0.5
"""How often an idle instance looks whether its process is still alive."""

T = TypeVar("T")


class Batcher:
    """Thread-safe. `on_rejected` is called without the lock.

    **Invariants**: no instance is given a job that is cancelled or past its deadline; every future
    that was admitted is settled, whatever happens to its neighbours; a normal job never waits
    behind one of low priority that no instance has taken.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_delay: float,
        max_queue: int,
        clock: Clock,
        on_rejected: Callable[[Rejection], None],
    ) -> None:
        self._clock = clock
        self._on_rejected = on_rejected
        self._queues = ShapeQueues(max_rows=max_rows, max_delay=max_delay)
        self._running = Running()
        self._times = ServiceTime()
        self._admission = Admission(self._queues, self._times, max_queue=max_queue)
        self._closed_with: PaddlepoolError | None = None
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._deadlines = Deadlines(
            lock, self._queues, self._running, clock=clock, on_rejected=on_rejected
        )

    def reserve(self, deadline: float) -> Reservation:
        """Hold a place for a job that is still to be made, until it is submitted or released.

        Raises what submit() would if the job were there: nobody waits until a picture is open to
        hear that there is no room for it.
        """

        def admit() -> Reservation:
            self._check_open()
            now = self._clock()
            return self._admission.reserve(deadline, now, self._running.instances(now))

        return self._admitted(admit)

    def release(self, reservation: Reservation) -> None:
        """Its job never will be made, or has been submitted by now."""
        with self._work:
            self._admission.reservations.discard(reservation)

    def submit(self, *jobs: Job, reservation: Reservation | None = None) -> None:
        """Queue all of the jobs or none, all at once: jobs of one request share batches.

        Raises TooManyInputs, Overloaded, DeadlineExceeded or ModelNotReady. A reservation ends
        here; the first job takes its place.
        """

        def admit() -> list[Job]:
            self._check_open()
            self._deadlines.start()
            now = self._clock()
            shed = self._admission.admit(jobs, now, self._running.instances(now), reservation)
            self._work.notify(len(jobs))
            self._deadlines.added(jobs)
            return shed

        shed = self._admitted(admit)
        for job in jobs:
            # Not the job itself: a future keeps its callbacks, and the two would keep each other,
            # tensors and all, until the next garbage collection.
            job.future.add_done_callback(partial(self._drop_cancelled, weakref.ref(job)))
        for unlucky in shed:
            self._on_rejected(Rejection.SHED)
            wait = self._backlog()
            unlucky.fail(Overloaded("dropped for a job of higher priority", retry_after=wait))

    def _admitted(self, admit: Callable[[], T]) -> T:
        """What admit() returns. A refusal is counted, and its error raised outside the handler and
        forgotten by this frame, which is in its traceback: inside, each would keep the other."""
        try:
            with self._work:
                return admit()
        except Refused as refused:
            self._on_rejected(refused.reason)
            error = refused.error
        try:
            raise error
        finally:
            del error

    def _check_open(self) -> None:
        if self._closed_with is not None:
            raise Refused(Rejection.NOT_READY, self._closed_with.alone())

    def take(self, healthy: Callable[[], bool]) -> Batch | None:
        """Wait for a batch and start it. None when the batcher closed or `healthy()` is false.

        `healthy` is asked before any job is touched and twice a second while there is none, so
        that a process that died while it was idle costs nobody a request.
        """
        with self._work:
            while not self.closed:
                now = self._clock()
                jobs, ask_again = self._queues.next_batch(now)
                if not jobs and not self._running.returned:
                    if self._wait(min(HEALTH_SECONDS, ask_again - now)) or healthy():
                        continue
                elif healthy():
                    if batch := self._running.resume(now) or self._start(jobs, now):
                        return batch
                    continue
                # Another instance may take what this one was woken for.
                self._work.notify()
                return None
            return None

    def take_prefetch(self) -> Batch | None:
        """Start the batch that may run now, for an instance whose run is about to end.

        None where there is none, or where an idle instance was notified of it.
        """
        with self._work:
            if self.closed or self._running.idle:
                return None
            now = self._clock()
            jobs, _ = self._queues.next_batch(now)
            return self._running.resume(now) or self._start(jobs, now)

    def _wait(self, seconds: float) -> bool:
        self._running.idle += 1
        woken = self._work.wait(seconds)
        self._running.idle -= 1
        return woken

    def _start(self, jobs: list[Job], now: float) -> Batch | None:
        started = []
        for job in jobs:
            self._queues.take(job)
            if job.deadline <= now:
                self._deadlines.passed(job)
            elif job.begin():
                started.append(job)
        if not started:
            return None
        expected = self._times.expected(started[0].key)
        batch = Batch(jobs=tuple(started), started=now, expected_seconds=expected)
        self._running.batches.add(batch)
        return batch

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """The batch has left its instance; `seconds` of the run, None when it came to no end."""
        with self._work:
            self._running.batches.discard(batch)
            self._deadlines.left()
            if seconds is not None:
                self._times.record(batch.key, seconds)

    def give_back(self, *batches: Batch) -> None:
        """The batches have not begun: the next instance takes them before anything else."""
        with self._work:
            if self._closed_with is None:
                self._running.returned.extend(batches)
                self._work.notify(len(batches))
                return
            self._running.batches.difference_update(batches)
            self._deadlines.left()
            error = self._closed_with
        for job in (job for batch in batches for job in batch.jobs):
            job.fail(error)

    def divide(self, batch: Batch) -> None:
        """A batch that came to no end goes back as one for each of its jobs."""
        with self._work:
            alone = self._running.divide(batch)
        self.give_back(*alone)

    def observed(self, key: ShapeKey, seconds: float) -> None:
        """A run outside the queue, such as a warm-up, took `seconds`."""
        with self._work:
            self._times.record(key, seconds)

    def add_live(self, change: int) -> None:
        """An instance began (+1) or ceased (-1) to take batches."""
        with self._work:
            self._running.live += change

    @property
    def closed(self) -> bool:
        return self._closed_with is not None

    @property
    def live(self) -> int:
        """Instances that take batches."""
        return self._running.live

    @property
    def depth(self) -> int:
        return len(self._queues)

    @property
    def idle(self) -> bool:
        """Nothing waits, runs or is reserved."""
        with self._work:
            return not (self._queues or self._running.batches or self._admission.reservations)

    @property
    def inflight(self) -> int:
        with self._work:
            return len(self._running.jobs())

    def close(self, error: PaddlepoolError) -> None:
        """Fail what waits and what comes later, each with a copy of the error, and end take().
        Batches that run are finished."""
        with self._work:
            self._closed_with = error
            waiting = self._queues.take_expired(math.inf) + self._running.drop_returned()
            self._work.notify_all()
            self._deadlines.end()
        for job in waiting:
            job.fail(error)

    def _drop_cancelled(self, waiting: weakref.ref[Job], future: Future[object]) -> None:
        if not future.cancelled() or (job := waiting()) is None:
            return
        with self._work:
            waited = self._queues.remove(job)
        if waited:
            self._on_rejected(Rejection.CANCELLED)

    def _backlog(self) -> float:
        with self._work:
            seconds = sum(self._times.expected(job.key) for job in self._queues)
            return seconds / max(1, self._running.live)

"""The dynamic batcher: one bounded queue in front of the instances of one group.

                            ┌────────── given back, or divided ◄──────────┐
submit ──► admission ──► queues ──► take (an idle instance) ──► run ──► finished
              │             ├── cancelled by the client: leaves its queue at once
              │             ├── deadline passed: failed on time by the batcher's own thread
         Overloaded         └── shed for a job of higher priority when the queue is full
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from app.contracts.errors import DeadlineExceeded, ModelNotReady, Overloaded, PaddlepoolError
from app.contracts.ports import Clock, InferResult
from app.engine.queue.admission import Admission, Instances, Refused
from app.engine.queue.job import Batch, Job, ShapeKey
from app.engine.queue.service_time import ServiceTime
from app.engine.queue.shape_queues import ShapeQueues

HEALTH_SECONDS = 0.5
"""How often an idle instance looks whether its predictor is still alive."""


class Batcher:
    """Thread-safe. `on_rejected` is called without the lock, with a reason of `reasons.REJECTIONS`.

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
        on_rejected: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._on_rejected = on_rejected
        self._queues = ShapeQueues(max_rows=max_rows, max_delay=max_delay)
        self._running: set[Batch] = set()
        self._returned: deque[Batch] = deque()
        self._times = ServiceTime()
        self._admission = Admission(self._queues, self._times, max_queue=max_queue)
        self._live = 0
        self._idle = 0
        self._closed_with: PaddlepoolError | None = None
        self._late: list[Job] = []
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._deadlines = threading.Condition(lock)
        self._wake_at = float("inf")
        self._reaper = threading.Thread(target=self._reap, name="deadlines", daemon=True)

    def reserve(self, deadline: float) -> None:
        """Hold a place for a job that is still to be made; leave() must follow.

        Raises what submit() would if the job were there: nobody waits until a picture is open to
        hear that there is no room for it.
        """
        try:
            with self._work:
                self._check_open()
                self._admission.of_reservation(deadline, self._clock(), self._instances())
                self._admission.reservations += 1
        except Refused as refused:
            error = self._report(refused)
        else:
            return
        try:
            raise error
        finally:
            del error  # it has this frame in its traceback

    def release(self) -> None:
        """The job is made and about to be submitted, or never will be."""
        with self._work:
            self._admission.reservations -= 1

    def submit(self, *jobs: Job) -> None:
        """Queue all of the jobs or none; raises Overloaded, DeadlineExceeded or ModelNotReady.

        No instance sees the first before the last is there: jobs of one request share batches.
        """
        try:
            with self._work:
                shed = self._admit_all(jobs)
                if self._reaper.ident is None:
                    self._reaper.start()
                self._work.notify(len(jobs))
                if min(job.deadline for job in jobs) < self._wake_at:
                    self._deadlines.notify()
        except Refused as refused:
            error = self._report(refused)
        else:
            self._accept(jobs, shed)
            return
        try:
            raise error
        finally:
            del error  # it has this frame in its traceback

    def _report(self, refused: Refused) -> PaddlepoolError:
        """What to raise, outside the handler: inside, each would keep the other."""
        self._on_rejected(refused.reason)
        return refused.error

    def _accept(self, jobs: Sequence[Job], shed: Sequence[Job]) -> None:
        for job in jobs:
            # Not the job itself: a future keeps its callbacks, and the two would keep each other,
            # tensors and all, until the garbage collector comes by.
            job.future.add_done_callback(partial(self._drop_cancelled, weakref.ref(job)))
        for unlucky in shed:
            self._on_rejected("shed")
            unlucky.fail(
                Overloaded("dropped for a job of higher priority", retry_after=self._backlog())
            )

    def _admit_all(self, jobs: Sequence[Job]) -> list[Job]:
        """Puts the jobs into their queues and returns those of lower priority that had to go for
        them; raises Refused, with everything as it was before."""
        self._check_open()
        now, instances = self._clock(), self._instances()
        shed: list[Job] = []
        for place, job in enumerate(jobs):
            try:
                unlucky = self._admission.of_job(job, now, instances)
            except Refused:
                for added in jobs[:place]:
                    self._queues.remove(added)
                for returning in reversed(shed):  # the youngest was shed first
                    self._queues.add(returning)
                raise
            if unlucky is not None:
                self._queues.remove(unlucky)
                shed.append(unlucky)
            self._queues.add(job)
        return shed

    def _check_open(self) -> None:
        if self.closed:
            raise Refused("not_ready", ModelNotReady("this model version is no longer served"))

    def _instances(self) -> Instances:
        now = self._clock()
        return Instances(
            live=self._live,
            running=sum(
                max(0.0, batch.started + batch.expected_seconds - now) for batch in self._running
            ),
            free=self._idle > 0 or len(self._running) < self._live,
        )

    def take(self, healthy: Callable[[], bool]) -> Batch | None:
        """Wait for a batch and start it. None when the batcher closed or `healthy()` is false.

        `healthy` is asked before any job is touched and twice a second while there is none, so
        that a predictor that died in its sleep costs nobody a request.
        """
        with self._work:
            while not self.closed:
                now = self._clock()
                jobs, ask_again = self._queues.next_batch(now)
                if not jobs and not self._returned:
                    if self._wait(min(HEALTH_SECONDS, ask_again - now)) or healthy():
                        continue
                elif healthy():
                    if batch := self._resume(now) or self._start(jobs, now):
                        return batch
                    continue
                # Another instance may take what this one was woken for.
                self._work.notify()
                return None
            return None

    def take_prefetch(self) -> Batch | None:
        """Start the batch that may run now, for an instance whose run is about to end.

        None where there is none, or where an idle instance has been woken for it.
        """
        with self._work:
            if self.closed or self._idle:
                return None
            now = self._clock()
            jobs, _ = self._queues.next_batch(now)
            return self._resume(now) or self._start(jobs, now)

    def _wait(self, seconds: float) -> bool:
        self._idle += 1
        try:
            return self._work.wait(seconds)
        finally:
            self._idle -= 1

    def _resume(self, now: float) -> Batch | None:
        """What came back, as far as somebody still waits for it."""
        while self._returned:
            batch = self._returned.popleft()
            self._running.discard(batch)
            if jobs := tuple(job for job in batch.jobs if not job.future.done()):
                batch = replace(batch, jobs=jobs, started=now)
                self._running.add(batch)
                return batch
        return None

    def _start(self, jobs: list[Job], now: float) -> Batch | None:
        started = []
        for job in jobs:
            self._queues.remove(job)
            if job.deadline <= now:
                self._late.append(job)
                self._deadlines.notify()
            elif job.begin():
                started.append(job)
        if not started:
            return None
        batch = Batch(
            jobs=tuple(started),
            started=now,
            expected_seconds=self._times.expected(started[0].key),
        )
        self._running.add(batch)
        return batch

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """The batch has left its instance; `seconds` of the run, None when it came to no end."""
        with self._work:
            self._running.discard(batch)
            if self.closed:
                self._deadlines.notify_all()
            if seconds is not None:
                self._times.record(batch.key, seconds)

    def give_back(self, *batches: Batch) -> None:
        """The batches have not begun: the next instance takes them before anything else."""
        with self._work:
            if self._closed_with is None:
                self._returned.extend(batches)
                self._work.notify(len(batches))
                return
            self._running.difference_update(batches)
            self._deadlines.notify_all()
            error = self._closed_with
        for job in (job for batch in batches for job in batch.jobs):
            job.fail(error)

    def divide(self, batch: Batch) -> None:
        """A batch that came to no end goes back as one for each of its jobs."""
        alone = [replace(batch, jobs=(job,)) for job in batch.jobs]
        with self._work:
            self._running.discard(batch)
            self._running.update(alone)
        self.give_back(*alone)

    def observed(self, key: ShapeKey, seconds: float) -> None:
        """A run outside the queue, such as a warm-up, took `seconds`."""
        with self._work:
            self._times.record(key, seconds)

    def add_live(self, change: int) -> None:
        """An instance began (+1) or ceased (-1) to take batches."""
        with self._work:
            self._live += change

    @property
    def closed(self) -> bool:
        return self._closed_with is not None

    @property
    def live(self) -> int:
        return self._live

    @property
    def depth(self) -> int:
        return len(self._queues)

    @property
    def idle(self) -> bool:
        """Nothing waits, runs or has a place."""
        with self._work:
            return not (self._queues or self._running or self._admission.reservations)

    @property
    def inflight(self) -> int:
        with self._work:
            return sum(len(batch.jobs) for batch in self._running)

    def close(self, error: PaddlepoolError) -> None:
        """Fail what waits, and let instances and later callers go. Running batches finish."""
        with self._work:
            self._closed_with = error
            waiting = list(self._queues)
            for job in waiting:
                self._queues.remove(job)
            waiting += [job for batch in self._returned for job in batch.jobs]
            self._running.difference_update(self._returned)
            self._returned.clear()
            self._work.notify_all()
            self._deadlines.notify_all()
        for job in waiting:
            job.fail(error)

    def _drop_cancelled(self, waiting: weakref.ref[Job], future: Future[InferResult]) -> None:
        if not future.cancelled() or (job := waiting()) is None:
            return
        with self._work:
            waited = self._queues.remove(job)
        if waited:
            self._on_rejected("cancelled")

    def _backlog(self) -> float:
        with self._work:
            seconds = sum(self._times.expected(job.key) for job in self._queues)
            return seconds / max(1, self._live)

    def _reap(self) -> None:
        """Fail jobs at their deadline, queued or running, also while every instance is busy."""
        while True:
            with self._work:
                now = self._clock()
                expired = [job for job in self._queues if job.deadline <= now]
                for job in expired:
                    self._queues.remove(job)
                expired, self._late = expired + self._late, []
                running = [job for batch in self._running for job in batch.jobs]
                overdue = [j for j in running if j.deadline <= now and not j.future.done()]
                if not expired and not overdue:
                    if self.closed and not self._running:
                        return
                    pending = [job.deadline for job in self._queues]
                    pending += [job.deadline for job in running if not job.future.done()]
                    self._wake_at = min(pending, default=float("inf"))
                    self._deadlines.wait(min(self._wake_at - now, threading.TIMEOUT_MAX))
                    continue
            for job in expired:
                self._on_rejected("expired")
                job.fail(DeadlineExceeded("the deadline passed while the job waited in the queue"))
            for job in overdue:
                job.fail(DeadlineExceeded("the deadline passed while the job was running"))

"""The dynamic batcher: one bounded queue in front of the instances of one group.

    submit ──► admission ──► lanes ──► take (an idle instance) ──► run ──► finished
                  │             ├── cancelled by the client: leaves its lane at once
                  │             ├── deadline passed: failed on time by the batcher's own thread
             Overloaded         └── shed for a job of higher priority when the queue is full

A job is admitted only if, by the moving service time, it can finish before its deadline. One
exception keeps a wrong estimate from refusing everyone for ever: a job that would run at once is
always admitted, and its run corrects the estimate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from app.engine.job import Batch, Job, ShapeKey
from app.engine.lanes import Lanes
from app.engine.ports import Clock, InferResult
from app.engine.service_time import ServiceTime
from app.errors import DeadlineExceeded, ModelNotReady, Overloaded, PaddlepoolError

HEALTH_SECONDS = 0.5
"""How often an idle instance looks whether its predictor is still alive."""


class Batcher:
    """Thread-safe. `on_rejected` is called without the lock, with a reason of `ports.REJECTIONS`.

    **Invariants**: a job past its deadline or cancelled never starts; every future that was
    admitted is settled, whatever happens to its neighbours; a normal job never waits behind one
    of low priority that has not started.
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
        self._max_queue = max_queue
        self._clock = clock
        self._on_rejected = on_rejected
        self._lanes = Lanes(max_rows=max_rows, max_delay=max_delay)
        self._running: set[Batch] = set()
        self._times = ServiceTime()
        self._live = 0
        self._idle = 0
        self._closed = False
        self._late: list[Job] = []
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._deadlines = threading.Condition(lock)
        self._wake_at = float("inf")
        self._reaper = threading.Thread(target=self._reap, name="deadlines", daemon=True)

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
        except _Refused as refused:
            self._on_rejected(refused.reason)
            raise refused.error from None
        for job in jobs:
            job.future.add_done_callback(partial(self._drop_cancelled, job))
        for unlucky in shed:
            self._on_rejected("shed")
            unlucky.fail(
                Overloaded("dropped for a job of higher priority", retry_after=self._backlog())
            )

    def _admit_all(self, jobs: Sequence[Job]) -> list[Job]:
        """Puts the jobs into their lanes and returns those that had to go for them; raises
        _Refused, with everything as it was before."""
        shed: list[Job] = []
        for place, job in enumerate(jobs):
            try:
                unlucky = self._admit(job)
            except _Refused:
                for added in jobs[:place]:
                    self._lanes.remove(added)
                for returning in reversed(shed):  # the youngest was shed first
                    self._lanes.add(returning)
                raise
            if unlucky is not None:
                shed.append(unlucky)
            self._lanes.add(job)
        return shed

    def _admit(self, job: Job) -> Job | None:
        """Raises _Refused; returns the job of lower priority that must go, if one must."""
        now = self._clock()
        if self._closed:
            raise _Refused("not_ready", ModelNotReady("this model version is no longer served"))
        if job.deadline <= now:
            late = DeadlineExceeded("the deadline had passed before the job could be queued")
            raise _Refused("deadline", late)
        wait = self._wait_before(job, now)
        finish = now + wait + self._times.expected(job.key)
        if wait > 0 and finish > job.deadline:
            hopeless = Overloaded(
                f"the queue needs about {finish - now:.2f} s, "
                f"the deadline leaves {job.deadline - now:.2f} s",
                retry_after=wait,
                limit=round(job.deadline - now, 3),
                received=round(finish - now, 3),
            )
            raise _Refused("deadline", hopeless)
        if len(self._lanes) < self._max_queue:
            return None
        shed = self._lanes.least_urgent(job.priority)
        if shed is None:
            full = Overloaded(
                f"the queue is full: {len(self._lanes)} jobs wait, limit {self._max_queue}",
                retry_after=max(wait, self._times.overall()),
                limit=self._max_queue,
                received=len(self._lanes) + 1,
            )
            raise _Refused("queue_full", full)
        self._lanes.remove(shed)
        return shed

    def _wait_before(self, job: Job, now: float) -> float:
        """Seconds until an instance would take the job, by the moving service time."""
        if not self._lanes and len(self._running) < self._live:
            return 0.0
        running = sum(
            max(0.0, batch.started + batch.expected_seconds - now) for batch in self._running
        )
        before = self._lanes.seconds_before(job, self._times)
        return (running + before) / max(1, self._live)

    def take(self, healthy: Callable[[], bool]) -> Batch | None:
        """Wait for a batch and start it. None when the batcher closed or `healthy()` is false.

        `healthy` is asked before any job is touched and twice a second while there is none, so
        that a predictor that died in its sleep costs nobody a request.
        """
        with self._work:
            while not self._closed:
                now = self._clock()
                jobs, ask_again = self._lanes.next_batch(now)
                if not jobs:
                    if self._wait(min(HEALTH_SECONDS, ask_again - now)) or healthy():
                        continue
                elif healthy():
                    if batch := self._start(jobs, now):
                        return batch
                    continue
                # Another instance may take what this one was woken for.
                self._work.notify()
                return None
            return None

    def take_next(self) -> Batch | None:
        """Start the batch that may run now, for an instance whose run is about to end.

        None where there is none, or where an idle instance has been woken for it.
        """
        with self._work:
            if self._closed or self._idle:
                return None
            now = self._clock()
            jobs, _ = self._lanes.next_batch(now)
            return self._start(jobs, now) if jobs else None

    def _wait(self, seconds: float) -> bool:
        self._idle += 1
        try:
            return self._work.wait(seconds)
        finally:
            self._idle -= 1

    def _start(self, jobs: list[Job], now: float) -> Batch | None:
        started = []
        for job in jobs:
            self._lanes.remove(job)
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
            if self._closed:
                self._deadlines.notify_all()
            if seconds is not None:
                self._times.record(batch.key, seconds)

    def divide(self, batch: Batch) -> list[Batch]:
        """A batch that came to no end, as one for each job that somebody still waits for."""
        with self._work:
            alone = [replace(batch, jobs=(job,)) for job in batch.jobs if not job.future.done()]
            self._running.discard(batch)
            self._running.update(alone)
            return alone

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
        return self._closed

    @property
    def live(self) -> int:
        return self._live

    @property
    def depth(self) -> int:
        return len(self._lanes)

    @property
    def inflight(self) -> int:
        with self._work:
            return sum(len(batch.jobs) for batch in self._running)

    def close(self, error: PaddlepoolError) -> None:
        """Fail what waits, and let instances and later callers go. Running batches finish."""
        with self._work:
            self._closed = True
            waiting = list(self._lanes)
            for job in waiting:
                self._lanes.remove(job)
            self._work.notify_all()
            self._deadlines.notify_all()
        for job in waiting:
            job.fail(error)

    def _drop_cancelled(self, job: Job, future: Future[InferResult]) -> None:
        if not future.cancelled():
            return
        with self._work:
            waited = self._lanes.remove(job)
        if waited:
            self._on_rejected("cancelled")

    def _backlog(self) -> float:
        with self._work:
            seconds = sum(self._times.expected(job.key) for job in self._lanes)
            return seconds / max(1, self._live)

    def _reap(self) -> None:
        """Fail jobs at their deadline, queued or running, also while every instance is busy."""
        while True:
            with self._work:
                now = self._clock()
                expired = [job for job in self._lanes if job.deadline <= now]
                for job in expired:
                    self._lanes.remove(job)
                expired, self._late = expired + self._late, []
                running = [job for batch in self._running for job in batch.jobs]
                overdue = [j for j in running if j.deadline <= now and not j.future.done()]
                if not expired and not overdue:
                    if self._closed and not self._running:
                        return
                    pending = [job.deadline for job in self._lanes]
                    pending += [job.deadline for job in running if not job.future.done()]
                    self._wake_at = min(pending, default=float("inf"))
                    self._deadlines.wait(min(self._wake_at - now, threading.TIMEOUT_MAX))
                    continue
            for job in expired:
                self._on_rejected("expired")
                job.fail(DeadlineExceeded("the deadline passed while the job waited in the queue"))
            for job in overdue:
                job.fail(DeadlineExceeded("the deadline passed while the job was running"))


class _Refused(Exception):
    def __init__(self, reason: str, error: PaddlepoolError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error

"""One instance: a thread that owns one process, feeds it batches and replaces it when it fails.

                   ┌───────── opened, tested, warmed up ◄────────────────────┐
thread start ──► opening ──► serving ──► died, stopped or timed out ──► back-off
                   │  ▲         │
      died: back-off ─┘         └── resident memory above the cap: a successor is opened beside
                                    it by another thread and takes over between two batches

Between two runs a predictor would stand idle while this thread settles the jobs of the first and
joins those of the second: a millisecond, a tenth of a short run. So the next batch is handed over
shortly before the run ends, no sooner, because until then others may join or overtake it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from app.contracts.errors import BackendError, ConfigError, PaddlepoolError, WorkerCrashed
from app.contracts.ports import Clock, Interrupted, Worker
from app.contracts.reasons import Restart, unopened
from app.engine.pool.succession import Succession
from app.engine.queue.batcher import Batcher
from app.engine.queue.job import Batch

GRACE_SECONDS = 2.0
"""How long a run may outlive the latest deadline in its batch before its process is ended: clients
with short deadlines must not be able to make the server start processes."""
PATIENCE = 10.0
"""A run is given this many times its usual seconds, however short the deadlines in its batch are:
an impatient client must not cost a predictor."""
PREFETCH_SECONDS = 0.001
PREFETCH_PART = 0.1
"""Seconds, and share of a run, before its usual end: about as much as runs differ."""
PREFETCH_RUN_SECONDS = 0.1
"""Longer runs are left to end first: nothing measurable is gained, and another may be free."""
FAREWELL_SECONDS = 0.2
OPENING_SECONDS = 10.0
"""What close_all() waits for runs in progress, and for a process that is just being opened."""

log = logging.getLogger(__name__)


class Timed(Protocol):
    """An answer that says how many seconds the run took in its process."""

    @property
    def seconds(self) -> float: ...


Request = TypeVar("Request")
Answer = TypeVar("Answer", bound=Timed)


@dataclass(slots=True, eq=False)
class Run:
    """A batch that a worker runs; `joining` is the seconds that joining its inputs took,
    `began` when it was sent or, if later, when the run before it ended."""

    batch: Batch
    joining: float
    began: float


class Instance(Generic[Request, Answer]):
    """Starts its thread at once; `opened` is settled when the first worker is ready or refused.

    `open_worker(first)` gives a worker that has proven itself and is warm; the first one is opened
    by the thread that will use it. A first one that is refused (ConfigError, BackendError) ends the
    instance; after any other error it is opened again. `lost(reason)` hears of each worker that is
    replaced and returns the seconds to wait before the next is opened. `request_of(batch)` is what
    the worker is sent, `deliver(run, answer)` settles the jobs. Runs are made under `serving()`.
    """

    def __init__(
        self,
        name: str,
        *,
        open_worker: Callable[[bool], Worker[Request, Answer]],
        batcher: Batcher,
        lost: Callable[[Restart], float],
        request_of: Callable[[Batch], Request],
        deliver: Callable[[Run, Answer], None],
        serving: Callable[[], AbstractContextManager[None]],
        clock: Clock,
        max_resident_bytes: int,
    ) -> None:
        self.opened: Future[None] = Future()
        self._name = name
        self._open = open_worker
        self._batcher = batcher
        self._lost = lost
        self._request_of = request_of
        self._deliver = deliver
        self._serving = serving
        self._clock = clock
        self._worker: Worker[Request, Answer] | None = None
        opening = partial(open_worker, False)
        self._succession = Succession(name, opening, cap=max_resident_bytes, clock=clock)
        self._runs: deque[Run] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def resident_bytes(self) -> int:
        worker = self._worker
        return worker.resident_bytes() if worker is not None else 0

    def ask_to_close(self) -> None:
        """Open no worker any more; the thread ends once its batcher is closed, too."""
        self._closing.set()

    def join(self, farewell: float) -> None:
        """Wait for the thread to end. A run in progress is broken off after so many seconds:
        nobody holds a lease on its result."""
        self._thread.join(max(0.0, farewell))
        worker = self._worker
        if self._thread.is_alive() and worker is not None:
            worker.abort()
        self._thread.join(OPENING_SECONDS)

    def give_up_opening(self, error: PaddlepoolError) -> None:
        """Nobody need wait until it is open; it goes on trying."""
        with contextlib.suppress(InvalidStateError):
            self.opened.set_exception(error)

    def _live(self) -> None:
        worker = self._first()
        if worker is None:
            return
        while True:
            reason = self._serve(worker)
            if reason is None or self._closing.is_set():
                self._succession.close()
                break
            log.warning("%s: its process is replaced: %s", self._name, reason)
            replacement = self._replace(reason)
            if replacement is None:
                break
            worker = replacement

    def _first(self) -> Worker[Request, Answer] | None:
        """The first worker, however long it takes; None when it is refused or this is closing."""
        while True:
            try:
                return self._open(True)
            except (ConfigError, BackendError) as refusal:
                self.give_up_opening(refusal)
                return None
            except Exception as error:
                log.warning("%s: cannot be opened yet: %s", self._name, error)
                reason = unopened(error)
            if self._closing.wait(self._lost(reason)):
                self.give_up_opening(WorkerCrashed("closed before it could be opened"))
                return None

    def _serve(self, worker: Worker[Request, Answer]) -> Restart | None:
        """Take batches until the worker is lost (the reason) or the batcher closes (None)."""
        self._succession.began(worker)
        self._worker = worker
        self._batcher.add_live(+1)
        with contextlib.suppress(InvalidStateError):
            self.opened.set_result(None)
        try:
            while True:
                batch = self._batcher.take(lambda: worker.failure() is None)
                if batch is None:
                    # One that was stopped may be running again by now: it is lost all the same.
                    return None if self._batcher.closed else worker.failure() or Restart.STOPPED
                with self._serving():
                    lost = self._run(worker, batch)
                if lost is not None:
                    return lost
                del batch  # its tensors must not stay while this waits for the next
                if self._succession.ready():
                    return Restart.MEMORY
        finally:
            self._batcher.add_live(-1)
            self._worker = None
            worker.close()

    def _run(self, worker: Worker[Request, Answer], batch: Batch) -> Restart | None:
        """Run the batch, and without a gap what waits when it ends; why the worker is lost, if it
        is. What it had not begun by then goes back, for whoever is free first."""
        self._hand_over(worker, batch)
        lost = None
        while self._runs and lost is None:
            if (following := self._following(worker)) is not None:
                self._hand_over(worker, following)
            lost = self._finish(worker, self._runs.popleft())
            self._succession.watch(worker)
        self._batcher.give_back(*(run.batch for run in self._runs))
        self._runs.clear()
        return lost

    def _following(self, worker: Worker[Request, Answer]) -> Batch | None:
        """The batch to hand over while the run under way is about to end."""
        [run] = self._runs
        expected = run.batch.expected_seconds
        if self._closing.is_set() or self._succession.ready():
            return None
        if not 0.0 < expected < PREFETCH_RUN_SECONDS:
            return None
        ahead = PREFETCH_SECONDS + PREFETCH_PART * expected
        if worker.arrives(run.began + expected - ahead - self._clock()):
            return None
        return self._batcher.take_prefetch()

    def _hand_over(self, worker: Worker[Request, Answer], batch: Batch) -> None:
        """Send the batch after those under way; one that cannot be sent goes back or fails."""
        began = self._clock()
        try:
            request = self._request_of(batch)
            sent = self._clock()
            worker.send(request)
        except WorkerCrashed:
            self._batcher.give_back(batch)
        except Exception as error:
            self._refused(batch, error)
        else:
            self._runs.append(Run(batch, joining=sent - began, began=sent))

    def _finish(self, worker: Worker[Request, Answer], run: Run) -> Restart | None:
        """Wait for the end of a run and settle its jobs; why the worker is lost, if it is.

        A crash fails every job of the batch: which of them caused it cannot be known, and running
        them again could crash the next predictor.
        """
        batch, again = run.batch, False
        patience = max(batch.deadline - run.began, PATIENCE * batch.expected_seconds)
        limit = run.began + patience + GRACE_SECONDS
        seconds: float | None = None
        try:
            try:
                answer = worker.receive(timeout=limit - self._clock())
            finally:
                for following in self._runs:
                    following.began = self._clock()
            seconds = answer.seconds
            self._deliver(run, answer)
        except Exception as error:
            if (lost := worker.failure()) is not None:
                again = isinstance(error, Interrupted)
                if not again:
                    self._fail(batch, error)
                return lost
            self._refused(batch, error)
        finally:
            if again:
                self._batcher.give_back(batch)
            else:
                self._batcher.finished(batch, seconds)
        return None

    def _refused(self, batch: Batch, error: Exception) -> None:
        """The process lives on: a batch of several is run again one job at a time, and only the
        guilty one fails."""
        if len(batch.jobs) == 1:
            self._fail(batch, error)
            self._batcher.finished(batch, None)
        else:
            self._batcher.divide(batch)

    def _fail(self, batch: Batch, error: Exception) -> None:
        if not isinstance(error, PaddlepoolError):
            log.error("%s: a run failed", self._name, exc_info=error)
            error = BackendError("the outputs of the run do not fit its inputs")
        for job in batch.jobs:
            job.fail(error)

    def _replace(self, reason: Restart) -> Worker[Request, Answer] | None:
        """A new worker, however long it takes; None when this instance is closing."""
        successor = self._succession.take()
        while True:
            delay = self._lost(reason)
            if successor is None and self._closing.wait(delay):
                return None
            try:
                return self._open(False) if successor is None else successor.result()
            except Exception as error:
                log.warning("%s: cannot be opened again: %s", self._name, error)
                successor, reason = None, unopened(error)


def close_all(instances: Sequence[Instance[Request, Answer]]) -> None:
    """End them and wait; their batcher is closed by now."""
    farewell = time.monotonic() + FAREWELL_SECONDS
    for instance in instances:
        instance.ask_to_close()
    for instance in instances:
        instance.join(farewell - time.monotonic())

"""One instance: a thread that owns one predictor, feeds it batches and replaces it when it fails.

                   ┌───────── opened, self-tested, warmed up ◄───────────────┐
thread start ──► opening ──► serving ──► died, stopped or timed out ──► back-off
                                │
                                └── resident memory above the cap: a successor is opened beside
                                    it by another thread and takes over between two batches

Between two runs a predictor would stand idle while this thread settles the jobs of the first and
joins those of the second: a millisecond, a tenth of a short run. So the next batch is handed over
shortly before the run ends, no sooner, because until then others may join or overtake it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass

from app.contracts.errors import BackendError, DeadlineExceeded, PaddlepoolError, WorkerCrashed
from app.contracts.ports import Clock, Predictor, Ran
from app.engine.queue.batcher import Batcher
from app.engine.queue.job import Batch

GRACE_SECONDS = 2.0
"""How long a run may outlive the latest deadline in its batch before its process is ended."""

PATIENCE = 4.0
"""A run is given this many times its usual seconds, however short the deadlines in its batch are:
an impatient client must not cost the others a predictor."""

PREFETCH_SECONDS = 0.001
PREFETCH_PART = 0.1
"""The next batch is handed over so long before the usual end of a run, and by this part of the run,
which is about how much runs differ."""

PREFETCH_RUN_SECONDS = 0.1
"""Longer runs are left to end first: nothing is gained that could be measured, and meanwhile
another instance may be free."""

FAREWELL_SECONDS = 0.2
OPENING_SECONDS = 10.0
"""What join() waits for a run in progress, and for a predictor that is just being opened."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Run:
    """A batch in the hands of a predictor; `joining` is the seconds that joining its inputs took,
    `began` when it was sent or, if later, when the run before it ended."""

    batch: Batch
    joining: float
    began: float


class Instance:
    """Starts its thread at once; `opened` is settled when the first predictor is ready or refused.

    `open_predictor(first)` gives a predictor that has passed its self-test and is warm, or raises a
    PaddlepoolError; the first one is opened by the thread that will use it. `lost(reason)` is told
    of each predictor that is replaced and says how many seconds to wait before the next is opened.
    `deliver(run, ran)` settles the jobs of a run. Runs are made under `serving()`.
    """

    def __init__(
        self,
        name: str,
        *,
        open_predictor: Callable[[bool], Predictor],
        batcher: Batcher,
        lost: Callable[[str], float],
        deliver: Callable[[Run, Ran], None],
        serving: Callable[[], AbstractContextManager[None]],
        clock: Clock,
        max_resident_bytes: int,
    ) -> None:
        self.opened: Future[None] = Future()
        self._name = name
        self._open = open_predictor
        self._batcher = batcher
        self._lost = lost
        self._deliver = deliver
        self._serving = serving
        self._clock = clock
        self._cap = self._max_resident_bytes = max_resident_bytes
        self._predictor: Predictor | None = None
        self._successor: Future[Predictor] | None = None
        self._runs: deque[Run] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def resident_bytes(self) -> int:
        predictor = self._predictor
        return predictor.resident_bytes() if predictor is not None else 0

    def ask_to_close(self) -> None:
        """Replace no predictor any more; the thread ends once its batcher is closed, too."""
        self._closing.set()

    def join(self) -> None:
        """Wait for the thread to end. A run in progress is given a moment and then broken off:
        nobody holds a lease on its result."""
        self._thread.join(FAREWELL_SECONDS)
        predictor = self._predictor
        if self._thread.is_alive() and predictor is not None:
            predictor.abort()
        self._thread.join(OPENING_SECONDS)

    def _live(self) -> None:
        try:
            predictor = self._open(True)
        except PaddlepoolError as error:
            self.opened.set_exception(error)
            return
        except Exception as error:
            log.exception("%s: cannot be opened", self._name)
            self.opened.set_exception(BackendError(f"this is a bug: {type(error).__name__}"))
            return
        while True:
            reason = self._serve(predictor)
            if reason is None or self._closing.is_set():
                if self._successor is not None:
                    self._successor.add_done_callback(_close_unused)
                break
            log.warning("%s: predictor lost (%s)", self._name, reason)
            replacement = self._replace(reason)
            if replacement is None:
                break
            predictor = replacement

    def _serve(self, predictor: Predictor) -> str | None:
        """Take batches until the predictor is lost (the reason) or the batcher closes (None)."""
        self._cap = max(self._max_resident_bytes, predictor.resident_bytes() * 3 // 2)
        self._predictor = predictor
        self._batcher.add_live(+1)
        if not self.opened.done():
            self.opened.set_result(None)
        try:
            while True:
                batch = self._batcher.take(lambda: predictor.failure() is None)
                if batch is None:
                    # One that was stopped may be running again by now: it is lost all the same.
                    return None if self._batcher.closed else predictor.failure() or "stopped"
                with self._serving():
                    lost = self._run(predictor, batch)
                if lost is not None:
                    return lost
                del batch  # its tensors must not stay while this waits for the next
                if self._successor_ready():
                    return "memory"
        finally:
            self._batcher.add_live(-1)
            self._predictor = None
            predictor.close()

    def _run(self, predictor: Predictor, batch: Batch) -> str | None:
        """Run the batch, and without a gap what waits when it ends; why the predictor is lost, if
        it is. What it had not begun by then goes back, for whoever is free first."""
        self._hand_over(predictor, batch)
        lost = None
        while self._runs and lost is None:
            if (following := self._following(predictor)) is not None:
                self._hand_over(predictor, following)
            lost = self._finish(predictor, self._runs.popleft())
            self._watch_memory(predictor)
        self._batcher.give_back(*(run.batch for run in self._runs))
        self._runs.clear()
        return lost

    def _following(self, predictor: Predictor) -> Batch | None:
        """The batch to hand over while the run under way is about to end."""
        [run] = self._runs
        expected = run.batch.expected_seconds
        if self._closing.is_set() or self._successor_ready():
            return None
        if not 0.0 < expected < PREFETCH_RUN_SECONDS:
            return None
        ahead = PREFETCH_SECONDS + PREFETCH_PART * expected
        if predictor.arrives(run.began + expected - ahead - self._clock()):
            return None
        return self._batcher.take_prefetch()

    def _hand_over(self, predictor: Predictor, batch: Batch) -> None:
        """Send the batch after those under way; one that cannot be sent goes back or fails."""
        began = self._clock()
        try:
            inputs = batch.inputs()
            sent = self._clock()
            predictor.send(inputs)
        except WorkerCrashed:
            self._batcher.give_back(batch)
        except Exception as error:
            self._refused(batch, error)
        else:
            self._runs.append(Run(batch, joining=sent - began, began=sent))

    def _finish(self, predictor: Predictor, run: Run) -> str | None:
        """Wait for the end of a run and settle its jobs; why the predictor is lost, if it is.

        A crash fails every job of the batch: which of them caused it cannot be known, and running
        them again could crash the next predictor.
        """
        batch = run.batch
        patience = max(batch.deadline - run.began, PATIENCE * batch.expected_seconds)
        limit = run.began + patience + GRACE_SECONDS
        seconds: float | None = None
        try:
            try:
                ran = predictor.receive(timeout=limit - self._clock())
            finally:
                for following in self._runs:
                    following.began = self._clock()
            seconds = ran.seconds
            self._deliver(run, ran)
        except WorkerCrashed as error:
            self._fail(batch, error)
            return predictor.failure() or "crashed"
        except DeadlineExceeded as error:
            self._fail(batch, error)
            return "timeout"
        except Exception as error:
            self._refused(batch, error)
        finally:
            self._batcher.finished(batch, seconds)
        return None

    def _refused(self, batch: Batch, error: Exception) -> None:
        """The process lives on: a batch of several is run again one job at a time, and only the
        guilty one fails."""
        if not isinstance(error, PaddlepoolError):
            log.exception("%s: a batch failed", self._name)
            error = BackendError("the predictor's outputs do not fit its inputs")
        if len(batch.jobs) == 1:
            self._fail(batch, error)
            self._batcher.finished(batch, None)
        else:
            self._batcher.divide(batch)

    def _fail(self, batch: Batch, error: PaddlepoolError) -> None:
        for job in batch.jobs:
            job.fail(error)

    def _watch_memory(self, predictor: Predictor) -> None:
        """Above the cap, open a successor beside the predictor.

        Where none can be opened the predictor serves on, until it is half as large again.
        """
        if self._successor is None and predictor.resident_bytes() > self._cap:
            self._successor = Future()
            opening = threading.Thread(
                target=self._open_successor,
                args=(self._successor,),
                name=f"{self._name} successor",
                daemon=True,
            )
            try:
                opening.start()
            except RuntimeError as failure:  # the system has no thread left to give
                self._successor.set_exception(failure)
        successor = self._successor
        if successor is not None and successor.done() and (error := successor.exception()):
            log.warning("%s: no successor can be opened: %s", self._name, error)
            self._successor = None
            self._cap = self._cap * 3 // 2

    def _successor_ready(self) -> bool:
        successor = self._successor
        return successor is not None and successor.done() and successor.exception() is None

    def _open_successor(self, successor: Future[Predictor]) -> None:
        try:
            successor.set_result(self._open(False))
        except Exception as error:
            successor.set_exception(error)

    def _replace(self, reason: str) -> Predictor | None:
        """A new predictor, however long it takes; None when this instance is closing."""
        successor, self._successor = self._successor, None
        while True:
            delay = self._lost(reason)
            if successor is None and self._closing.wait(delay):
                return None
            try:
                return self._open(False) if successor is None else successor.result()
            except Exception as error:
                log.warning("%s: cannot be opened again: %s", self._name, error)
                successor, reason = None, "failed"


def _close_unused(successor: Future[Predictor]) -> None:
    if successor.exception() is None:
        successor.result().close()

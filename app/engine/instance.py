"""One instance: a thread that owns one predictor, feeds it batches and replaces it when it fails.

                   ┌───────── opened, self-tested, warmed up ◄───────────────┐
thread start ──► opening ──► serving ──► died, stopped or timed out ──► back-off
                                │
                                └── resident memory above the cap: a successor is opened beside
                                    it by another thread and takes over between two batches
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace

from app.engine.batcher import Batcher
from app.engine.job import Batch
from app.engine.ports import Clock, Predictor
from app.engine.tensors import Tensors
from app.errors import BackendError, DeadlineExceeded, PaddlepoolError, WorkerCrashed

GRACE_SECONDS = 2.0
"""How long a run may outlive the latest deadline in its batch before its process is ended."""

PATIENCE = 4.0
"""A run is given this many times its usual seconds, however short the deadlines in its batch are:
an impatient client must not cost the others a predictor."""

FAREWELL_SECONDS = 0.2
OPENING_SECONDS = 10.0
"""What join() waits for a run in progress, and for a predictor that is just being opened."""

log = logging.getLogger(__name__)


class Instance:
    """Starts its thread at once; `opened` is settled when the first predictor is ready or refused.

    `open_predictor(first)` gives a predictor that has passed its self-test and is warm, or raises a
    PaddlepoolError; the first one is opened by the thread that will use it. `lost(reason)` is told
    of each predictor that is replaced and says how many seconds to wait before the next is opened.
    `deliver(batch, outputs, joining, infer)` settles the jobs of a finished batch; it is told the
    seconds that joining the inputs and the run took. Runs are made under `serving()`.
    """

    def __init__(
        self,
        name: str,
        *,
        open_predictor: Callable[[bool], Predictor],
        batcher: Batcher,
        lost: Callable[[str], float],
        deliver: Callable[[Batch, Tensors, float, float], None],
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
        self._max_resident_bytes = max_resident_bytes
        self._predictor: Predictor | None = None
        self._successor: Future[Predictor] | None = None
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
        self.opened.set_result(None)
        while True:
            reason = self._serve(predictor)
            if reason is None or self._closing.is_set():
                if self._successor is not None:
                    self._successor.add_done_callback(_close_unused)
                return
            log.warning("%s: predictor lost (%s)", self._name, reason)
            replacement = self._replace(reason)
            if replacement is None:
                return
            predictor = replacement

    def _serve(self, predictor: Predictor) -> str | None:
        """Take batches until the predictor is lost (the reason) or the batcher closes (None)."""
        cap = max(self._max_resident_bytes, predictor.resident_bytes() * 3 // 2)
        self._predictor = predictor
        self._batcher.add_live(+1)
        try:
            while True:
                batch = self._batcher.take(lambda: predictor.failure() is None)
                if batch is not None:
                    lost = self._execute(predictor, batch)
                elif self._batcher.closed:
                    return None
                else:
                    lost = predictor.failure()
                if lost is not None:
                    return lost
                cap, successor_ready = self._watch_memory(predictor, cap)
                if successor_ready:
                    return "memory"
        finally:
            self._batcher.add_live(-1)
            self._predictor = None
            predictor.close()

    def _execute(self, predictor: Predictor, batch: Batch) -> str | None:
        """Run one batch and settle its jobs; returns why the predictor is lost, if it is.

        A crash fails every job of the batch: which of them caused it cannot be known, and running
        them again could crash the next predictor. A refusal by the framework leaves the process
        alive, so a batch of several is run again one job at a time and only the guilty one fails.
        """
        seconds: float | None = None
        try:
            seconds = self._run(predictor, batch)
        except WorkerCrashed as error:
            return self._fail(batch, error, predictor.failure() or "crashed")
        except DeadlineExceeded as error:
            return self._fail(batch, error, "timeout")
        except Exception as error:
            if not isinstance(error, PaddlepoolError):
                log.exception("%s: a batch failed", self._name)
                error = BackendError("the predictor's outputs do not fit its inputs")
            if len(batch.jobs) == 1:
                return self._fail(batch, error, None)
            for job in batch.jobs:
                if job.future.done():
                    continue  # its deadline passed meanwhile
                lost = self._execute(predictor, replace(batch, jobs=(job,)))
                if lost is not None:
                    return self._fail(batch, WorkerCrashed("the predictor process ended"), lost)
        finally:
            self._batcher.finished(batch, seconds)
        return None

    def _run(self, predictor: Predictor, batch: Batch) -> float:
        began = self._clock()
        inputs = batch.inputs()
        started = self._clock()
        patience = max(batch.deadline - started, PATIENCE * batch.expected_seconds)
        with self._serving():
            outputs = predictor.run(inputs, timeout=patience + GRACE_SECONDS)
        seconds = self._clock() - started
        self._deliver(batch, outputs, started - began, seconds)
        return seconds

    def _fail(self, batch: Batch, error: PaddlepoolError, reason: str | None) -> str | None:
        for job in batch.jobs:
            job.fail(error)
        return reason

    def _watch_memory(self, predictor: Predictor, cap: int) -> tuple[int, bool]:
        """Above the cap, open a successor beside the predictor; tells when it stands ready.

        Where none can be opened the predictor serves on, until it is half as large again.
        """
        if self._successor is None and predictor.resident_bytes() > cap:
            successor: Future[Predictor] = Future()
            self._successor = successor
            threading.Thread(
                target=self._open_successor, args=(successor,), name=f"{self._name} successor"
            ).start()
        if self._successor is None or not self._successor.done():
            return cap, False
        if (error := self._successor.exception()) is None:
            return cap, True
        log.warning("%s: no successor can be opened: %s", self._name, error)
        self._successor = None
        return cap * 3 // 2, False

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

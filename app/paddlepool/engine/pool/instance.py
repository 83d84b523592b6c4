"""One instance: owns one process, feeds it batches and replaces it when it fails.

                ┌───────── opened, tested, warmed up ◄────────────────────┐
start ──► opening ──► serving ──► died, stopped or timed out ──► back-off
                │  ▲         │
   died: back-off ─┘         └── resident memory above the cap: a successor is opened while
                                 this process serves, and takes over between two batches

A task of the event loop opens and replaces the process; blocking steps run in a thread. While the
process serves, the loop reads its socket. When a run has ended, the next batch is handed over
before the jobs of the ended run are settled, so that the process does not wait for the event loop.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from paddlepool.contracts.errors import (
    BackendError,
    ConfigError,
    ModelOutputInvalid,
    PaddlepoolError,
    WorkerCrashed,
)
from paddlepool.contracts.ports import Clock, Interrupted, RunResult, Worker
from paddlepool.contracts.reasons import Restart
from paddlepool.engine.awaiting import in_some_thread, log_failure
from paddlepool.engine.process.answers import Reply
from paddlepool.engine.queue.batcher import Batcher
from paddlepool.engine.queue.job import INLINE_BYTES, Batch

GRACE_SECONDS = 2.0
"""How long a run may exceed the latest deadline in its batch before its process is killed. Without
this time, clients with short deadlines could cause restarts."""
PATIENCE = 10.0
"""A run may take this many times its usual seconds, however short the deadlines in its batch are:
a client with a short deadline must not cause the loss of a predictor."""
IDLE_CHECK_SECONDS = 0.5
"""How often an idle process is checked, unless it was used within that time."""
ABORT_SECONDS = 0.2
OPENING_SECONDS = 10.0
"""close_all() waits `ABORT_SECONDS` for runs in progress, and then up to `OPENING_SECONDS` for
processes that are being opened."""

POLL_SECONDS = 0.05
"""Interval between two checks of a worker's memory. It is not shorter because a check takes a tenth
of the time of a short run: the system sums the memory over all processors."""

log = logging.getLogger(__name__)


T = TypeVar("T")
Request = TypeVar("Request")
Result = TypeVar("Result", RunResult, Reply)


@dataclass(slots=True, eq=False)
class Run:
    """A batch that a worker runs.

    `joining` is the time in seconds that joining the batch's inputs took. `began` is when the batch
    was sent or the previous run ended, whichever is later; `ended` is when the answer came.
    """

    batch: Batch
    joining: float
    began: float
    ended: float = 0.0


@dataclass(slots=True, eq=False)
class Succession(Generic[Request, Result]):
    """The successor of one instance's worker.

    The effective cap is at least 1.5 times the worker's initial size. If no successor can be
    opened, the worker continues to serve and the cap grows by half.
    """

    name: str
    open_worker: Callable[[], Awaitable[Worker[Request, Result]]]
    smallest_cap: int
    clock: Clock
    _cap: int = field(default=0, init=False)
    _next_check: float = field(default=-math.inf, init=False)
    _successor: asyncio.Future[Worker[Request, Result]] | None = field(default=None, init=False)

    def began(self, worker: Worker[Request, Result]) -> None:
        self._cap = max(self.smallest_cap, worker.resident_bytes() * 3 // 2)
        self._next_check = -math.inf

    def watch(self, worker: Worker[Request, Result]) -> None:
        """Open a successor if the worker exceeds the cap; called while it runs nothing."""
        if self._successor is None and self._above_cap(worker):
            self._successor = asyncio.ensure_future(self.open_worker())
        successor = self._successor
        if successor is not None and successor.done() and (error := successor.exception()):
            log.warning("%s: no successor can be opened: %s", self.name, error)
            self._successor = None
            self._cap = self._cap * 3 // 2

    def _above_cap(self, worker: Worker[Request, Result]) -> bool:
        now = self.clock()
        if now < self._next_check:
            return False
        self._next_check = now + POLL_SECONDS
        return worker.resident_bytes() > self._cap

    def ready(self) -> bool:
        successor = self._successor
        return successor is not None and successor.done() and successor.exception() is None

    def take(self) -> asyncio.Future[Worker[Request, Result]] | None:
        """Return the successor that is open or being opened, if any; the caller now owns it."""
        successor, self._successor = self._successor, None
        return successor

    async def close(self) -> None:
        """Close the successor, if any, once it is open."""
        if (successor := self.take()) is not None:
            await asyncio.wait([successor])
            if successor.exception() is None:
                await in_some_thread(f"{self.name} end", successor.result().close)


@dataclass(eq=False, kw_only=True)
class Instance(Generic[Request, Result]):
    """Owner of one worker at a time. Opens the first at once; `opened` is settled when it is ready.

    `open_worker(first)` returns a worker that is tested and warm. If the first one is rejected
    (ConfigError, BackendError), the instance ends and `opened` fails; after any other error,
    opening is retried. `lost(reason)` is called for each worker that is replaced and returns the
    seconds to wait before the next is opened. `request_of(batch)` builds the worker's request; it
    runs in a thread for a large batch. `deliver(run, answer)` settles the jobs. `serving(+1)` is
    called when the process begins to work, `serving(-1)` when it becomes idle. With `ahead`, a
    second batch may be sent while one runs.
    """

    name: str
    open_worker: Callable[[bool], Awaitable[Worker[Request, Result]]]
    batcher: Batcher
    lost: Callable[[Restart], float]
    request_of: Callable[[Batch], Request]
    deliver: Callable[[Run, Result], None]
    serving: Callable[[int], None]
    clock: Clock
    max_resident_bytes: int
    ahead: bool

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        self._loop = loop
        self._worker: Worker[Request, Result] | None = None
        self._succession: Succession[Request, Result] = Succession(
            self.name, partial(self.open_worker, False), self.max_resident_bytes, self.clock
        )
        self._runs: deque[Run] = deque()
        self._copying: asyncio.Task[None] | None = None
        self._busy = False
        self._used = 0.0
        self._check_timer: asyncio.TimerHandle | None = None
        self._loss: asyncio.Future[Restart | None] = loop.create_future()
        self._closing = asyncio.Event()
        self._task = loop.create_task(self._live(), name=self.name)
        self._task.add_done_callback(log_failure)

    def resident_bytes(self) -> int:
        worker = self._worker
        return worker.resident_bytes() if worker is not None else 0

    def ask_to_close(self) -> None:
        """Open no more workers, and end the current one when it has nothing under way."""
        self._closing.set()
        if not self._runs and self._copying is None:
            self._lose(None)

    async def join(self, timeout: float) -> None:
        """Wait until the instance has ended; abort a run in progress after `timeout` seconds.

        Instances are normally closed when no request waits for a result any more.
        """
        await asyncio.wait([self._task], timeout=max(0.0, timeout))
        if not self._task.done() and self._worker is not None:
            self._worker.abort()
        await asyncio.wait([self._task], timeout=OPENING_SECONDS)

    def give_up_opening(self, error: PaddlepoolError) -> None:
        """Fail the future `opened` if it is pending; this does not stop any retries."""
        if not self.opened.done():
            self.opened.set_exception(error)

    async def _live(self) -> None:
        worker = await self._open(None)
        while worker is not None:
            reason = await self._serve(worker)
            if reason is None or self._closing.is_set():
                await self._succession.close()
                return
            log.warning("%s: replacing its process: %s", self.name, reason)
            worker = await self._open(reason)

    async def _open(self, reason: Restart | None) -> Worker[Request, Result] | None:
        """Open a worker, retrying without limit. `reason` is None for the first one.

        Returns None if the model is rejected, or if the instance is closing.
        """
        first, successor = reason is None, self._succession.take()
        while True:
            if reason is not None:
                delay = self.lost(reason)
                if successor is None and await self._pause(delay):
                    self.give_up_opening(WorkerCrashed("closed before it could be opened"))
                    return None
            try:
                return await (successor or self.open_worker(first))
            except Exception as error:
                if first and isinstance(error, ConfigError | BackendError):
                    self.give_up_opening(error)
                    return None
                when = "yet" if first else "again"
                log.warning("%s: cannot be opened %s: %s", self.name, when, error)
                successor = None
                reason = Restart.LACKING if isinstance(error, OSError) else Restart.FAILED

    async def _pause(self, seconds: float) -> bool:
        """Wait for these seconds; return True at once if the instance is closing, else False."""
        try:
            async with asyncio.timeout(seconds):
                return await self._closing.wait()
        except TimeoutError:
            return False

    async def _serve(self, worker: Worker[Request, Result]) -> Restart | None:
        """Run batches; return why the worker was lost, or None when the instance closes."""
        self._loss = self._loop.create_future()
        self._worker = worker
        self._used = self.clock()
        self._succession.began(worker)
        self._loop.add_reader(worker.fileno(), self._on_readable, worker)
        self._schedule_check(worker, IDLE_CHECK_SECONDS)
        if not self.opened.done():
            self.opened.set_result(None)
        if self._closing.is_set():
            self._lose(None)
        else:
            self.batcher.join(self)
        try:
            return await self._loss
        finally:
            self._worker = None
            if self._copying is not None:
                await asyncio.wait([self._copying])
            await in_some_thread(f"{self.name} end", worker.close)

    def _lose(self, reason: Restart | None) -> None:
        """Stop using the worker; batches that have not begun go back to the batcher."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._loss.set_result(reason)
        self._loop.remove_reader(worker.fileno())
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        self.batcher.leave(self)
        unbegun = [run.batch for run in self._runs]
        self._runs.clear()
        self._set_busy(False)
        self.batcher.give_back(*unbegun)

    def healthy(self) -> bool:
        """Whether the process can run a batch. Checks the process if it was idle. See Consumer."""
        if (worker := self._worker) is None:
            return False
        if self.clock() - self._used > IDLE_CHECK_SECONDS and (reason := worker.failure()):
            self._lose(reason)
        return self._worker is not None

    def has_room(self) -> bool:
        """Whether a second batch may be sent while one runs. See Consumer."""
        usable = self.ahead and self._copying is None and not self._succession.ready()
        return usable and len(self._runs) == 1 and not self._closing.is_set()

    def take(self, batch: Batch) -> None:
        """Send the batch to the process. If that fails, give it back or fail it. See Consumer."""
        if (worker := self._worker) is None:
            self.batcher.give_back(batch)
            return
        self._set_busy(True)
        if batch.nbytes <= INLINE_BYTES:
            try:
                self._send(worker, batch, *self._put(worker, batch))
            except Exception as error:
                self._not_sent(worker, batch, error)
        else:
            self._copy(worker, self._send_beside(worker, batch))

    async def _send_beside(self, worker: Worker[Request, Result], batch: Batch) -> None:
        try:
            put = await self._copied(worker, partial(self._put, worker, batch))
            self._send(worker, batch, *put)
        except Exception as error:
            self._not_sent(worker, batch, error)

    def _put(self, worker: Worker[Request, Result], batch: Batch) -> tuple[Request, float]:
        """Join the batch's inputs and copy them; returns the request and the seconds of joining."""
        began = self.clock()
        request = self.request_of(batch)
        joining = self.clock() - began
        worker.put(request)
        return request, joining

    def _send(
        self, worker: Worker[Request, Result], batch: Batch, request: Request, joining: float
    ) -> None:
        worker.send(request)
        self._runs.append(Run(batch, joining, began=self.clock()))
        if len(self._runs) == 1:
            self._expect(worker, self._runs[0].began)

    def _not_sent(self, worker: Worker[Request, Result], batch: Batch, error: Exception) -> None:
        if not isinstance(error, WorkerCrashed):
            self._refused(batch, error)
            self._next()
            return
        if self._runs:  # poll_reply() will report how the run under way ended
            self.batcher.leave(self)
        else:
            self._lose(worker.failure() or Restart.CRASHED)
        self.batcher.give_back(batch)

    def _expect(self, worker: Worker[Request, Result], now: float) -> None:
        """Set the timeout of the oldest run, which begins now."""
        run = self._runs[0]
        run.began = now
        patience = max(run.batch.deadline - now, PATIENCE * run.batch.expected_seconds)
        worker.expect(timeout=patience + GRACE_SECONDS)
        self._schedule_check(worker, min(IDLE_CHECK_SECONDS, patience + GRACE_SECONDS))

    def _schedule_check(self, worker: Worker[Request, Result], seconds: float) -> None:
        if self._check_timer is not None:
            if self._check_timer.when() <= self._loop.time() + seconds:
                return
            self._check_timer.cancel()
        self._check_timer = self._loop.call_later(seconds, self._check, worker)

    def _check(self, worker: Worker[Request, Result]) -> None:
        """Check whether a run takes too long, or an idle process has died."""
        self._check_timer, wait = None, IDLE_CHECK_SECONDS
        if self._copying is None and self._runs:
            try:
                wait = worker.check_timeout()
            except Exception as error:
                self._failed(worker, error)
        elif self._copying is None:
            self._check_idle(worker)
        if self._worker is not None:
            self._schedule_check(worker, wait)

    def _check_idle(self, worker: Worker[Request, Result]) -> None:
        """Replace an idle process that has died, or whose successor is open."""
        if reason := worker.failure():
            self._lose(reason)
            return
        self._succession.watch(worker)
        if self._succession.ready():
            self._lose(Restart.MEMORY)

    def _on_readable(self, worker: Worker[Request, Result]) -> None:
        """Handle the readable socket: the oldest run, or the process itself, has ended."""
        try:
            size = worker.poll_reply()
            if size is None:
                return
            if size > INLINE_BYTES:
                self._copy(worker, self._fetch_beside(worker))
                return
            answer = worker.fetch()
        except Exception as error:
            self._failed(worker, error)
        else:
            self._complete(worker, answer)

    async def _fetch_beside(self, worker: Worker[Request, Result]) -> None:
        try:
            answer = await self._copied(worker, worker.fetch)
        except Exception as error:
            self._failed(worker, error)
        else:
            self._complete(worker, answer)

    def _copy(self, worker: Worker[Request, Result], copying: Coroutine[Any, Any, None]) -> None:
        """Hand the worker to a thread; the event loop does not use it meanwhile."""
        self._loop.remove_reader(worker.fileno())
        self._copying = self._loop.create_task(copying)

    async def _copied(self, worker: Worker[Request, Result], work: Callable[[], T]) -> T:
        """Run `work` in a thread; afterwards the event loop uses the worker again."""
        try:
            return await in_some_thread(f"{self.name} copy", work)
        finally:
            self._copying = None
            if self._worker is not None:
                self._loop.add_reader(worker.fileno(), self._on_readable, worker)

    def _complete(self, worker: Worker[Request, Result], answer: Result) -> None:
        run = self._ended(worker)
        self.batcher.finished(run.batch, answer.seconds)
        self._next()
        try:
            self.deliver(run, answer)
        except Exception as error:
            self._refused(run.batch, error)

    def _failed(self, worker: Worker[Request, Result], error: Exception) -> None:
        """Handle a failed run, or an idle process that has died.

        A crash fails every job of the batch: the job that caused it is unknown, and running them
        again could crash the next predictor.
        """
        run = self._ended(worker) if self._runs else None
        lost = worker.failure()
        if lost is None and not isinstance(error, PaddlepoolError | Interrupted):
            worker.abort()  # else the next run would get this run's unread answer
            lost = Restart.CORRUPT
        if lost is None and run is not None:
            self._refused(run.batch, error)
            self._next()
            return
        if run is not None:
            if isinstance(error, Interrupted):
                self.batcher.give_back(run.batch)
            else:
                self._fail(run.batch, error)
                self.batcher.finished(run.batch, None)
        self._lose(lost or Restart.CRASHED)

    def _ended(self, worker: Worker[Request, Result]) -> Run:
        run = self._runs.popleft()
        run.ended = self._used = self.clock()
        if self._runs:
            self._expect(worker, run.ended)
        return run

    def _next(self) -> None:
        """Take the next batch, unless this process is to be closed or replaced."""
        if self._worker is None or self._copying is not None:
            return
        self._succession.watch(self._worker)
        if self._runs:
            self.batcher.dispatch()
        elif self._closing.is_set():
            self._lose(None)
        elif self._succession.ready():
            self._lose(Restart.MEMORY)
        else:
            self.batcher.offer(self)
            self._set_busy(bool(self._runs) or self._copying is not None)

    def _set_busy(self, busy: bool) -> None:
        if busy != self._busy:
            self._busy = busy
            self.serving(+1 if busy else -1)

    def _refused(self, batch: Batch, error: Exception) -> None:
        """Handle a failed run that the process survived.

        A batch of several jobs is run again one job at a time, so that only the faulty one fails.
        """
        if len(batch.jobs) == 1:
            self._fail(batch, error)
            self.batcher.finished(batch, None)
        else:
            self.batcher.divide(batch)

    def _fail(self, batch: Batch, error: Exception) -> None:
        if not isinstance(error, PaddlepoolError):
            log.error("%s: a run failed", self.name, exc_info=error)
            error = BackendError("the outputs of the run do not fit its inputs")
        elif isinstance(error, BackendError | ModelOutputInvalid):
            log.warning("%s: a run failed: %s", self.name, error.message)
        for job in batch.jobs:
            job.fail(error)


async def close_all(instances: Sequence[Instance[Request, Result]]) -> None:
    """End the instances and wait for them. The caller must have closed their batcher before."""
    for instance in instances:
        instance.ask_to_close()
    await asyncio.gather(*(instance.join(ABORT_SECONDS) for instance in instances))

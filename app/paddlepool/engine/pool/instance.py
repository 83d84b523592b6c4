"""One instance: owns one process, feeds it batches and replaces it when it fails.

             ┌────── delay is over ──────┐
             ▼                           │
start ──► OPENING ──── failed ────► BACKING_OFF ◄─────────────────┐
          │     │                                                 │
          │     └─ tested, warmed up ──► SERVING ── died, stopped, timed out, or replaced
   model rejected                           │
          │                              close()
          ▼                                 ▼
        CLOSED ◄── runs ended, or died ── DRAINING

An instance that is closed while OPENING is CLOSED when the opening ends; in BACKING_OFF,
immediately. If the resident memory of its process exceeds a cap, a successor is opened while the
process serves. The successor takes over between two batches, without a delay.

A task of the event loop opens and replaces the process; blocking steps run in a thread. While the
process serves, the loop reads its socket. When a run has ended, the next batch is handed over
before the jobs of the ended run get their results, so that the process does not wait for the loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, TypeVar

from paddlepool.contracts import errors
from paddlepool.contracts.errors import BackendError, PaddlepoolError, WorkerCrashed
from paddlepool.contracts.ports import Clock, Interrupted, RunResult, Worker
from paddlepool.contracts.reasons import Restart
from paddlepool.engine.concurrency import in_thread_or_inline, log_failure
from paddlepool.engine.pool.succession import Succession
from paddlepool.engine.process.replies import Reply
from paddlepool.engine.queue.batcher import Batcher
from paddlepool.engine.queue.job import INLINE_BYTES, Batch

GRACE_SECONDS = 2.0
"""How long a run may exceed the latest deadline in its batch before its process is killed. Without
this time, clients with short deadlines could cause restarts."""
PATIENCE = 10.0
"""A run may take this many times its usual seconds, and GRACE_SECONDS more, however short the
deadlines in its batch are: a client with a short deadline must not cause the loss of a process."""
IDLE_CHECK_SECONDS = 0.5
"""Interval between checks of an idle process. It is also checked before a batch, if it was not used
for this time."""
ABORT_SECONDS = 0.2
OPENING_SECONDS = 10.0
"""close_all() waits `ABORT_SECONDS` for runs in progress, and then up to `OPENING_SECONDS` for
processes that are being opened."""

log = logging.getLogger(__name__)

T = TypeVar("T")
Request = TypeVar("Request")
Result = TypeVar("Result", RunResult, Reply)


class State(Enum):
    """The life cycle of an instance, drawn at the top. Only SERVING and DRAINING use the worker."""

    OPENING = auto()
    SERVING = auto()
    DRAINING = auto()  # takes no further batch
    BACKING_OFF = auto()
    CLOSED = auto()


@dataclass(slots=True, eq=False)
class Run:
    """A batch that a worker runs.

    `joining` is the time in seconds that joining the batch's inputs took. `began` is when the batch
    was sent or the previous run ended, whichever is later; `ended` is when the reply was copied.
    """

    batch: Batch
    joining: float
    began: float
    ended: float = 0.0


@dataclass(eq=False, kw_only=True)
class Instance(Generic[Request, Result]):
    """Owns one worker at a time. Opens the first immediately; `opened` is done when it is ready.

    `open_worker(first)` returns a worker that is tested and warm; `first` is True until one has
    served. If the first one is rejected (ConfigError, BackendError), the instance ends and `opened`
    fails; after any other error, opening is retried. `on_loss(reason)` is called for each worker
    that is replaced and after each opening that failed and is retried. It returns the seconds to
    wait before the next opening; there is no wait if a successor exists. `make_request(batch)`
    builds the worker's request, in a thread if the batch has more than INLINE_BYTES.
    `on_result(run, result)` completes the jobs; if it raises, the run counts as failed: a single
    job fails, several are run again one at a time.
    `on_busy(+1)` is called when the process begins to work, `on_busy(-1)` when it becomes idle.
    Above `max_resident_bytes`, a worker gets a successor: see Succession. With `prefetch`, a second
    batch may be sent while one runs. Belongs to the event loop.
    """

    name: str
    open_worker: Callable[[bool], Awaitable[Worker[Request, Result]]]
    batcher: Batcher
    on_loss: Callable[[Restart], float]
    make_request: Callable[[Batch], Request]
    on_result: Callable[[Run, Result], None]
    on_busy: Callable[[int], None]
    clock: Clock
    max_resident_bytes: int
    prefetch: bool

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        self._loop = loop
        self._state = State.OPENING
        self._worker: Worker[Request, Result]  # the current one, or the last if there is none
        self._succession = Succession(
            self.name, partial(self.open_worker, False), self.max_resident_bytes, self.clock
        )
        self._runs: deque[Run] = deque()
        self._copying: asyncio.Task[None] | None = None
        self._busy = False
        self._last_used = 0.0
        self._check_timer: asyncio.TimerHandle | None = None
        self._loss: asyncio.Future[Restart | None] = loop.create_future()
        self._close_requested = asyncio.Event()
        self._task = loop.create_task(self._live(), name=self.name)
        self._task.add_done_callback(log_failure)

    def resident_bytes(self) -> int:
        return self._worker.resident_bytes() if self._uses_worker() else 0

    def close(self) -> None:
        """Open no more workers, take no further batch, and end when nothing is under way.

        Does not wait for that: see wait_closed().
        """
        self._close_requested.set()
        if self._state is State.SERVING:
            self._state = State.DRAINING
            if not self._runs and self._copying is None:
                self._stop_serving(None)

    async def wait_closed(self, timeout: float) -> None:
        """Wait until a closed instance has ended; kill its worker after `timeout` seconds.

        Returns at the latest `OPENING_SECONDS` after that, even if a worker is still being opened.
        """
        await asyncio.wait([self._task], timeout=max(0.0, timeout))
        if not self._task.done() and self._uses_worker():
            self._worker.abort()
        await asyncio.wait([self._task], timeout=OPENING_SECONDS)

    def fail_opening(self, error: PaddlepoolError) -> None:
        """Fail the future `opened` if it is pending; this does not stop any retries."""
        if not self.opened.done():
            self.opened.set_exception(error)

    def _uses_worker(self) -> bool:
        return self._state is State.SERVING or self._state is State.DRAINING

    async def _live(self) -> None:
        worker = await self._open(None)
        while worker is not None:
            reason = await self._serve(worker)
            if reason is None or self._close_requested.is_set():
                break
            log.warning("%s: replacing its process: %s", self.name, reason)
            worker = await self._open(reason)
        self._state = State.CLOSED
        await self._succession.close()

    async def _open(self, reason: Restart | None) -> Worker[Request, Result] | None:
        """Open a worker, or take the successor if there is one; retries without limit.

        `reason` is why the worker before was lost, None for the first one. Returns None if the
        first worker is rejected, or the instance is closed during a delay.
        """
        first, successor = reason is None, self._succession.pop()
        while True:
            if reason is not None:
                self._state = State.BACKING_OFF
                delay = self.on_loss(reason)
                if successor is None and await self._closed_within(delay):
                    self.fail_opening(WorkerCrashed("closed before it could be opened"))
                    return None
            self._state = State.OPENING
            try:
                return await (successor or self.open_worker(first))
            except Exception as error:
                if first and isinstance(error, errors.ConfigError | BackendError):
                    self.fail_opening(error)
                    return None
                when = "yet" if first else "again"
                log.warning("%s: cannot be opened %s: %s", self.name, when, error)
                successor = None
                reason = Restart.LACKING if isinstance(error, OSError) else Restart.FAILED

    async def _closed_within(self, seconds: float) -> bool:
        """Wait for these seconds, or until close() is called; return whether it was."""
        try:
            async with asyncio.timeout(seconds):
                return await self._close_requested.wait()
        except TimeoutError:
            return False

    async def _serve(self, worker: Worker[Request, Result]) -> Restart | None:
        """Use the worker until it is lost or the instance is closed; then close the worker.

        Returns why it was lost; None if the instance is closed.
        """
        self._loss = self._loop.create_future()
        self._worker, self._state = worker, State.SERVING
        self._last_used = self.clock()
        self._succession.reset(worker)
        self._loop.add_reader(worker.fileno(), self._on_readable)
        self._schedule_check(IDLE_CHECK_SECONDS)
        if not self.opened.done():
            self.opened.set_result(None)
        if self._close_requested.is_set():
            self._stop_serving(None)
        else:
            self.batcher.join(self)
        try:
            return await self._loss
        finally:
            if self._uses_worker():  # the task was cancelled
                self._state = State.CLOSED
            if self._copying is not None:
                await asyncio.wait([self._copying])
            await in_thread_or_inline(f"{self.name} end", worker.close)

    def _stop_serving(self, reason: Restart | None) -> None:
        """Stop using the worker, leave the batcher and requeue the batches that have not begun.

        `reason` is why the worker is lost, None if the instance is closed.
        """
        if not self._uses_worker():
            return
        self._state = State.CLOSED if self._close_requested.is_set() else State.BACKING_OFF
        self._loss.set_result(reason)
        self._loop.remove_reader(self._worker.fileno())
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        self.batcher.leave(self)
        not_begun = [run.batch for run in self._runs]
        self._runs.clear()
        self._set_busy(False)
        self.batcher.requeue(*not_begun)

    def healthy(self) -> bool:
        """Whether the process can run a batch. Checks the process if it was idle. See Consumer."""
        idle = self._uses_worker() and self.clock() - self._last_used > IDLE_CHECK_SECONDS
        if idle and (reason := self._worker.failure()):
            self._stop_serving(reason)
        return self._uses_worker()

    def has_room(self) -> bool:
        """Whether one batch runs and a second one may be sent: see Consumer."""
        usable = self.prefetch and self._copying is None and not self._succession.ready()
        return usable and len(self._runs) == 1 and self._state is State.SERVING

    def execute(self, batch: Batch) -> None:
        """Send the batch to the process; requeue or fail the batch if that fails. See Consumer."""
        self._set_busy(True)
        if batch.nbytes > INLINE_BYTES:
            self._start_copying(self._send_in_thread(batch))
            return
        try:
            self._send(batch, *self._put(batch))
        except Exception as error:
            self._on_send_error(batch, error)

    async def _send_in_thread(self, batch: Batch) -> None:
        try:
            self._send(batch, *await self._copy(partial(self._put, batch)))
        except Exception as error:
            self._on_send_error(batch, error)

    def _put(self, batch: Batch) -> tuple[Request, float]:
        """Build the batch's request and copy it; return it and the seconds of building it."""
        began = self.clock()
        request = self.make_request(batch)
        joining = self.clock() - began
        self._worker.put(request)
        return request, joining

    def _send(self, batch: Batch, request: Request, joining: float) -> None:
        self._worker.send(request)
        self._runs.append(Run(batch, joining, began=self.clock()))
        if len(self._runs) == 1:
            self._set_timeout(self._runs[0].began)

    def _on_send_error(self, batch: Batch, error: Exception) -> None:
        if not isinstance(error, WorkerCrashed):
            self._retry_or_fail(batch, error)
            self._next_batch()
            return
        if self._runs:  # poll_reply() will report how the run under way ended
            self.batcher.leave(self)
        else:
            self._stop_serving(self._worker.failure() or Restart.CRASHED)
        self.batcher.requeue(batch)

    def _set_timeout(self, now: float) -> None:
        """Set the timeout of the oldest run, which begins at `now`."""
        run = self._runs[0]
        run.began = now
        patience = max(run.batch.deadline - now, PATIENCE * run.batch.expected_seconds)
        self._worker.expect(timeout=patience + GRACE_SECONDS)
        self._schedule_check(min(IDLE_CHECK_SECONDS, patience + GRACE_SECONDS))

    def _schedule_check(self, seconds: float) -> None:
        if self._check_timer is not None:
            if self._check_timer.when() <= self._loop.time() + seconds:
                return
            self._check_timer.cancel()
        self._check_timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Act on a run that takes too long, or on an idle process that died or has a successor."""
        self._check_timer, wait = None, IDLE_CHECK_SECONDS
        if self._copying is None and self._runs:
            try:
                wait = self._worker.check_timeout()
            except Exception as error:
                self._on_run_error(error)
        elif self._copying is None:
            if reason := self._worker.failure():
                self._stop_serving(reason)
            else:
                self._replace_if_due()
        if self._uses_worker():
            self._schedule_check(wait)

    def _replace_if_due(self) -> bool:
        """Hand over to an open successor, or open one if needed; return whether it handed over."""
        if due := self._succession.check(self._worker):
            self._stop_serving(Restart.MEMORY)
        return due

    def _on_readable(self) -> None:
        """Handle a reply, output or the end of the process, which made its descriptor readable."""
        try:
            size = self._worker.poll_reply()
            if size is None:
                return
            if size > INLINE_BYTES:
                self._start_copying(self._fetch_in_thread())
                return
            result = self._worker.fetch()
        except Exception as error:
            self._on_run_error(error)
        else:
            self._on_run_result(result)

    async def _fetch_in_thread(self) -> None:
        try:
            result = await self._copy(self._worker.fetch)
        except Exception as error:
            self._on_run_error(error)
        else:
            self._on_run_result(result)

    def _start_copying(self, copying: Coroutine[Any, Any, None]) -> None:
        """Start a task that calls _copy(); the event loop does not use the worker meanwhile."""
        self._loop.remove_reader(self._worker.fileno())
        self._copying = self._loop.create_task(copying)

    async def _copy(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; afterwards the event loop uses the worker again."""
        try:
            return await in_thread_or_inline(f"{self.name} copy", work)
        finally:
            self._copying = None
            if self._uses_worker():
                self._loop.add_reader(self._worker.fileno(), self._on_readable)

    def _on_run_result(self, result: Result) -> None:
        run = self._pop_run()
        self.batcher.finished(run.batch, result.seconds)
        self._next_batch()
        try:
            self.on_result(run, result)
        except Exception as error:
            self._retry_or_fail(run.batch, error)

    def _on_run_error(self, error: Exception) -> None:
        """Handle a failed run, or an idle process that has died.

        A crash fails every job of the batch: the job that caused it is unknown, and running them
        again could crash the next process. A batch that was Interrupted is run again.
        """
        run = self._pop_run() if self._runs else None
        reason = self._worker.failure()
        if reason is None and not isinstance(error, PaddlepoolError | Interrupted):
            self._worker.abort()  # else the next run would get this run's unread reply
            reason = Restart.CORRUPT
        if reason is None and run is not None:
            self._retry_or_fail(run.batch, error)
            self._next_batch()
            return
        if run is not None:
            if isinstance(error, Interrupted):
                self.batcher.requeue(run.batch)
            else:
                self._fail_batch(run.batch, error)
        self._stop_serving(reason or Restart.CRASHED)

    def _pop_run(self) -> Run:
        """Remove and return the run that has ended, and begin to time the next one, if any."""
        run = self._runs.popleft()
        run.ended = self._last_used = self.clock()
        if self._runs:
            self._set_timeout(run.ended)
        return run

    def _next_batch(self) -> None:
        """Ask for the next batch, unless this process is to be closed or replaced."""
        if not self._uses_worker() or self._copying is not None:
            return
        if self._runs:
            self._succession.check(self._worker)
            self.batcher.dispatch()
        elif self._state is State.DRAINING:
            self._stop_serving(None)
        elif not self._replace_if_due():
            self.batcher.offer(self)
            self._set_busy(bool(self._runs) or self._copying is not None)

    def _set_busy(self, busy: bool) -> None:
        if busy != self._busy:
            self._busy = busy
            self.on_busy(+1 if busy else -1)

    def _retry_or_fail(self, batch: Batch, error: Exception) -> None:
        """Handle a failed run that the process survived.

        A batch of several jobs is run again one job at a time, so that only the faulty one fails.
        """
        if len(batch.jobs) == 1:
            self._fail_batch(batch, error)
        else:
            self.batcher.requeue_split(batch)

    def _fail_batch(self, batch: Batch, error: Exception) -> None:
        if not isinstance(error, PaddlepoolError):
            log.error("%s: a run failed", self.name, exc_info=error)
            error = BackendError("the outputs of the run do not fit its inputs")
        elif isinstance(error, BackendError | errors.ModelOutputInvalid):
            log.warning("%s: a run failed: %s", self.name, error.message)
        for job in batch.jobs:
            job.fail(error)
        self.batcher.finished(batch, None)


async def close_all(instances: Sequence[Instance[Request, Result]]) -> None:
    """End the instances, aborting runs after ABORT_SECONDS; wait up to OPENING_SECONDS more.

    The caller must have closed their batcher before.
    """
    for instance in instances:
        instance.close()
    await asyncio.gather(*(instance.wait_closed(ABORT_SECONDS) for instance in instances))

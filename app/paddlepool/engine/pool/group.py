"""A running instance group: one batcher, its instances, and the statistics of their runs."""

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

from paddlepool.contracts import errors
from paddlepool.contracts.errors import BackendError, ModelNotReady, PaddlepoolError
from paddlepool.contracts.ports import InferResult, Predictor, PredictorFactory, RunResult
from paddlepool.contracts.reasons import FAULTS, Rejection, Restart
from paddlepool.contracts.status import CANNOT_START, UNKNOWN_EFFECT, Effect, GroupStatus
from paddlepool.contracts.tensors import Tensors, all_finite, shape_key
from paddlepool.engine.concurrency import in_thread
from paddlepool.engine.pool.context import LACKING_SECONDS, EngineContext, RestartBackoff
from paddlepool.engine.pool.instance import Instance, Run, close_all
from paddlepool.engine.queue.admission import Reservation
from paddlepool.engine.queue.batcher import Batcher
from paddlepool.engine.queue.job import Batch, Job, ShapeKey
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.selftest import SelfTest

CRASH_LOOP = "its predictors keep crashing"
FIRST_RUN_SECONDS = 60.0
SHORT_RUN_SECONDS = 0.25

RunTimes = Sequence[tuple[ShapeKey, float]]
"""Pairs of a shape and the usual seconds of its runs."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Duration:
    """Count and total seconds of an operation."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


Times = tuple[float, float, float]
"""Seconds of one predictor run: joining the inputs, the run itself, dividing the outputs."""


@dataclass(slots=True, kw_only=True)
class Stages:
    """Counts and total seconds of the parts of runs, which Times describes."""

    inputs: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)
    outputs: Duration = field(default_factory=Duration)

    def add(self, times: Times) -> None:
        for part, seconds in zip((self.inputs, self.infer, self.outputs), times, strict=True):
            part.add(seconds)


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Counts and total seconds of jobs (requests in Triton) and predictor runs of a version.

    `rows` counts rows of answered jobs, `executions` completed runs. `success` has the seconds from
    the queueing of a job to its answer, `queue` the part of them before the run, and `failure` the
    seconds until a job failed, 0 if it was rejected. `requests` adds the times of a run once for
    each of its answered jobs, `batches` once for the run, by its number of rows. `last_ended` is
    the end of the last completed run on the engine's clock, None before the first.
    """

    rows: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    failure: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    requests: Stages = field(default_factory=Stages)
    batches: dict[int, Stages] = field(default_factory=lambda: defaultdict(Stages))
    last_ended: float | None = None

    def executed(self, rows: int, times: Times, *, ended: float) -> None:
        """Record a predictor run of `rows` rows that ended at `ended` on the engine's clock."""
        self.executions += 1
        self.batches[rows].add(times)
        self.last_ended = ended

    def succeeded(self, rows: int, times: Times, *, queued: float, total: float) -> None:
        """Record a job of `rows` rows that was answered `total` seconds after it was queued."""
        self.rows += rows
        self.success.add(total)
        self.queue.add(queued)
        self.requests.add(times)

    def snapshot(self) -> "Statistics":
        """Return a copy, with `batches` sorted by rows; may be called in any thread."""
        # sorted() copies the sizes in one step. The event loop may add a size during deepcopy().
        return deepcopy(replace(self, batches=dict(sorted(self.batches.items()))))


@dataclass(eq=False, kw_only=True)
class Group:
    """One instance group of a served version.

    start() opens its instances; a group that starts on demand is started by its first job. Such a
    group may be stopped while it is idle, and its next job starts it again. `context.on_demand`
    limits these groups, except the default group. `on_failure` is called once if an instance
    rejects the model. Belongs to the event loop; status() and open_shadow() may run in any thread.
    """

    config: InstanceGroup
    files: ModelFiles
    selftest: SelfTest
    warmups: tuple[Tensors, ...]
    statistics: Statistics
    context: EngineContext
    on_failure: Callable[[], None] | None = None
    effect: Effect = field(default=UNKNOWN_EFFECT, init=False)

    def __post_init__(self) -> None:
        self._model = self.files.name
        self._name = f"{self._model}@{self.files.version} {self.config.name}"
        self._spec = self.files.spec(self.config)
        self._batching = self.files.config.dynamic_batching
        self._first_opened: float | None = None
        self._opening = asyncio.Lock()  # with low priority, one opens at a time
        self._queue_limit = self._batching.max_queue_size * self.config.count
        full = self.config.count * self.files.max_rows
        self.portion = max(self.config.count, self._queue_limit // 2, min(full, self._queue_limit))
        """Maximum jobs of one request that wait or run at a time.

        Half of the queue's places, so that other requests find room; but enough for each instance
        to run a full batch, if the queue has that many places.
        """
        self._backoff = RestartBackoff(self.context.clock)
        self.faults = 0  # losses of a process for a reason in FAULTS
        self._batcher = self._new_batcher()
        self._low_priority = False
        self._on_demand = self.config.start == "on_demand"
        self._is_default = self.config.name == self.files.config.default_group
        self._last_used = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._instances: list[Instance[Tensors, RunResult]] = []
        refusal = self._spec.refusal
        self._failure: PaddlepoolError | None = BackendError(refusal) if refusal else None
        self.can_open = not refusal
        self._ending: set[asyncio.Task[None]] = set()

    def _new_batcher(self) -> Batcher:
        observer, model = self.context.observer, self._model
        return Batcher(
            max_rows=self.files.max_rows,
            max_delay=self._batching.max_queue_delay_ms / 1000,
            max_queue=self._queue_limit,
            clock=self.context.clock,
            on_rejected=lambda reason: observer.rejected(model=model, reason=reason),
            on_failed=self.statistics.failure.add,
        )

    def start(self, *, low_priority: bool = False) -> list[asyncio.Future[None]]:
        """Open every instance; return a future for each, done when it is tested and warm.

        A second call returns the same futures. The list is empty if the group was closed before it
        was started. It has one failed future if it is known beforehand that no instance can open.

        With `low_priority`, instances are opened one after another, in the processor time that
        serving predictors leave; the first one of a default group that starts on demand gets all
        it needs. If an instance rejects the model, its future raises ConfigError or BackendError,
        and the group accepts no further job. A process that dies meanwhile is opened again; in a
        crash loop, the futures raise BackendError. They raise WorkerCrashed if the group is closed
        before a retry.
        """
        if self._failure is not None and not self.can_open:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(self._failure)
            return [failed]
        if not self._instances and not self._batcher.closed:
            self._low_priority = low_priority
            if self._on_demand and self.context.on_demand_idle_seconds < math.inf:
                self._last_used = self.context.clock()
                self._check_idle_in(self.context.on_demand_idle_seconds)
            yielding = self.context.yielding
            self._instances = [
                Instance(
                    name=f"{self._name} {number}",
                    open_worker=partial(self._open, number),
                    batcher=self._batcher,
                    on_loss=self._on_loss,
                    make_request=Batch.inputs,
                    on_result=partial(self._on_result, number),
                    on_busy=lambda sign: yielding.serving(sign * self.config.threads),
                    clock=self.context.clock,
                    max_resident_bytes=self.context.max_resident_bytes,
                    prefetch=True,
                )
                for number in range(self.config.count)
            ]
        return [instance.opened for instance in self._instances]

    def _on_result(self, instance: int, run: Run, result: RunResult) -> None:
        """Record the run's times and complete each job with its rows of the outputs.

        A job whose outputs contain NaN or infinity fails with ModelOutputInvalid. Raises ValueError
        if the batch has several jobs, and an output has more or fewer rows than the batch.
        """
        batch, infer = run.batch, result.seconds
        parts = batch.split(result.outputs)
        self.context.observer.batch_done(
            model=self._model,
            version=self.files.version,
            group=self.config.name,
            rows=batch.rows,
            seconds=infer,
        )
        finite = [result.finite or all_finite(part) for part in parts]
        ended = self.context.clock()
        times = run.joining, infer, ended - run.ended
        self.statistics.executed(batch.rows, times, ended=ended)
        for job, part, valid in zip(batch.jobs, parts, finite, strict=True):
            if not valid:
                job.fail(errors.ModelOutputInvalid("the model's output contains NaN or infinity"))
                continue
            if job.future.done():
                continue  # expired or cancelled, and counted as a failure
            queued = run.ended - infer - run.joining - job.enqueued
            first_opened = math.inf if self._first_opened is None else self._first_opened
            start_up = max(0.0, min(first_opened - job.enqueued, queued))
            self.statistics.succeeded(job.rows, times, queued=queued, total=ended - job.enqueued)
            job.future.set_result(
                InferResult(
                    outputs=part,
                    model=self._model,
                    version=self.files.version,
                    group=self.config.name,
                    instance=instance,
                    enqueued=job.enqueued,
                    start_up_seconds=start_up,
                    queue_seconds=queued - start_up,
                    infer_seconds=infer,
                    batch_rows=batch.rows,
                )
            )

    def reserve(self, *, deadline: float) -> Reservation:
        """Hold a place: Batcher.reserve() with the effects and errors of _usable()."""
        return self._usable().reserve(deadline)

    def seconds_before(self) -> float:
        """Return the estimated seconds until all jobs that wait or run now have ended.

        Has the effects and errors of _usable().
        """
        batcher = self._usable()
        return batcher.backlog_seconds() / max(1, batcher.live)

    @property
    def places(self) -> int:
        """Number of jobs that can wait, plus one for each instance."""
        return self._queue_limit + self.config.count

    def submit(
        self, *jobs: Job, reservation: Reservation | None = None, following: bool = False
    ) -> None:
        """Queue all of the jobs or none, as Batcher.submit() does; start the group if necessary.

        Raises ModelNotReady, Overloaded and DeadlineExceeded.
        """
        self._usable().submit(*jobs, reservation=reservation, following=following)
        if not self._instances:
            self.start(low_priority=True)

    def _usable(self) -> Batcher:
        """Return the batcher for the next job, and mark an on-demand group as used.

        A default group that starts on demand is started here. For another on-demand group, idle
        ones may be stopped to make room; submit() then starts it. Raises ModelNotReady if the group
        accepts no job, and Overloaded if the limits of OnDemand do not let it start.
        """
        if reason := self._unusable_reason():
            self.context.observer.rejected(model=self._model, reason=Rejection.NOT_READY)
            raise ModelNotReady(f"instance group {self.config.name!r}: {reason}")
        if self._on_demand and not self._batcher.closed:
            self._last_used = self.context.clock()
            if self._is_default:
                self.start(low_priority=True)  # so that all parts of a composed model open at once
            else:
                self.context.on_demand.use(self)
        return self._batcher

    def idle(self) -> bool:
        """Whether no job waits or runs, no place is reserved, and every first opening has ended."""
        opened = all(instance.opened.done() for instance in self._instances)
        return opened and self._batcher.idle

    def stop(self, why: str = "to make room for another") -> None:
        """End the processes without waiting for them; the next job starts the group again.

        Waiting jobs fail with ModelNotReady. Does nothing if the group is closed.
        """
        if self._batcher.closed:
            return
        self._cancel_idle_timer()
        batcher, self._batcher = self._batcher, self._new_batcher()
        instances, self._instances = self._instances, []
        self._first_opened = None
        log.info("%s: stopped %s", self._name, why)
        batcher.close(ModelNotReady("the instance group was stopped"))
        ending = asyncio.create_task(close_all(instances), name=f"{self._name} end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _check_idle_in(self, seconds: float) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self._stop_if_unused)

    def _stop_if_unused(self) -> None:
        limit = self.context.on_demand_idle_seconds
        left = self._last_used + limit - self.context.clock()
        if left > 0 or not self.idle():
            self._check_idle_in(max(left, min(1.0, limit)))
            return
        self.context.on_demand.forget(self)
        self.stop(f"after {limit:g} s without a request")

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _unusable_reason(self) -> str:
        """Return why the group accepts no job; "" if it accepts jobs."""
        if self._failure is not None:
            return "cannot start"
        if self._batcher.live == 0 and self._backoff.in_crash_loop():
            return CRASH_LOOP
        return ""

    def ready(self) -> bool:
        """Whether at least one instance takes batches and the group accepts jobs."""
        return self._batcher.live > 0 and not self._unusable_reason()

    def accepts_jobs(self) -> bool:
        """Whether the group is ready, or can be started on demand."""
        return self.ready() or (self._on_demand and not self._unusable_reason())

    def status(self) -> GroupStatus:
        started = bool(self._instances)
        ready = self.ready()
        reason = self._unusable_reason() or ("restarting" if started else "not started")
        if self._failure is not None:  # for operators; clients get less detail
            reason = f"{CANNOT_START}{self._failure}"
        return GroupStatus(
            name=self.config.name,
            backend=self.config.backend,
            threads=self.config.threads,
            count=self.config.count,
            live=self._batcher.live,
            queue_depth=self._batcher.depth,
            queue_limit=self._queue_limit,
            inflight=self._batcher.inflight,
            resident_bytes=self.resident_bytes(),
            started=started,
            ready=ready,
            reason="" if ready else reason,
            program=self.config.program,
            effect=self.effect,
        )

    def resident_bytes(self) -> int:
        return sum(instance.resident_bytes() for instance in self._instances)

    async def close(self) -> None:
        """Fail queued jobs and end the processes. Safe to call twice and during the start."""
        self._cancel_idle_timer()
        self._batcher.close(ModelNotReady("this model version is no longer served"))
        await close_all(self._instances)
        self.context.on_demand.forget(self)

    async def _open(self, number: int, first: bool) -> Predictor:
        """Open a predictor of instance `number`. `first` says whether it is its first one.

        Only the first one may have low priority. That of instance 0 times its warm-up runs, unless
        its priority is low: it may be suspended meanwhile. Raises ConfigError or BackendError if
        the model is rejected; if `first`, the group then accepts no further job. Raises
        WorkerCrashed or OSError if the process died or could not be started.
        """
        batcher, low_priority = self._batcher, first and self._low_priority
        timed = first and number == 0 and not low_priority
        try:
            async with self._opening if low_priority else contextlib.nullcontext():
                awaited = self._on_demand and self._is_default and batcher.live == 0
                yields = low_priority and not awaited
                work = partial(self._open_in_thread, timed=timed, low_priority=yields)
                predictor, times = await in_thread(f"{self._name} opening", work)
        except (errors.ConfigError, BackendError) as error:
            if first:  # accept no job any more
                log.error("%s: cannot start: %s", self._name, error)
                if self._failure is None and self.on_failure is not None:
                    self.on_failure()
                self._failure = error.without_traceback()
                reason = f"instance group {self.config.name!r} cannot start"
                self._batcher.close(ModelNotReady(reason))
                self.context.on_demand.forget(self)
            raise
        if self._first_opened is None:
            self._first_opened = self.context.clock()
        for key, seconds in times:
            batcher.record_run(key, seconds)
        return predictor

    def open_shadow(self, open_predictor: PredictorFactory) -> Predictor:
        """Open and test a predictor that gets no jobs of the group; the caller must close it.

        Blocks; may be called in any thread. Raises DeadlineExceeded and the errors of
        PredictorFactory.
        """
        predictor = self.selftest.opened(open_predictor, self._spec, timeout=FIRST_RUN_SECONDS)
        try:
            self._verify_again(low_priority=True)
        except BaseException:
            predictor.close()
            raise
        return predictor

    def _verify_again(self, *, low_priority: bool) -> None:
        """Raise BackendError if the version's files have changed, OSError if one is unreadable.

        Called after a process has read them: a later change does no harm.
        """
        try:
            self.files.verify_again(low_priority=low_priority)
        except errors.ManifestError as changed:
            raise BackendError(f"changed since it was verified: {changed.message}") from changed

    def _open_in_thread(self, *, timed: bool, low_priority: bool) -> tuple[Predictor, RunTimes]:
        """Open a predictor, blocking until it is tested and warm; return it and its run times.

        With `low_priority` it is suspended while serving predictors need the cores. The times are
        empty unless `timed`. Raises BackendError if the files have changed, the self-test fails, or
        a run takes more than FIRST_RUN_SECONDS, and the errors of PredictorFactory.
        """
        suspension = self.context.yielding.suspension if low_priority else None
        predictor = self.context.open_predictor(self._spec, suspension=suspension)
        try:
            self._verify_again(low_priority=low_priority)
            self.selftest.check(predictor, timeout=FIRST_RUN_SECONDS)
            times = self._warm_up(predictor, timed)
        except BaseException as error:
            predictor.close()
            if not isinstance(error, errors.DeadlineExceeded):
                raise
            raise BackendError(f"a first run took more than {FIRST_RUN_SECONDS:.0f} s") from error
        if low_priority:
            predictor.end_suspension()
        return predictor, times

    def _warm_up(self, predictor: Predictor, timed: bool) -> RunTimes:
        """Run the shapes of `warmups`; return the usual seconds of each, or [] if not `timed`.

        The first run of a shape takes up to eight times as long as later ones. If `timed`, a short
        first run is therefore repeated, and the second time counts. The shape that the self-test
        has run already is not repeated; unless `timed`, it is left out.
        """
        tested = [array.shape for array in self.selftest.inputs.values()]
        times = []
        for inputs in self.warmups:
            if (again := [array.shape for array in inputs.values()] == tested) and not timed:
                continue
            seconds = self._timed_run(predictor, inputs)
            if timed and not again and seconds < SHORT_RUN_SECONDS:
                seconds = self._timed_run(predictor, inputs)
            times.append((shape_key(inputs), seconds))
        return times if timed else []

    def _timed_run(self, predictor: Predictor, inputs: Tensors) -> float:
        began = self.context.clock()
        predictor.run(inputs, timeout=FIRST_RUN_SECONDS)
        return self.context.clock() - began

    def _on_loss(self, reason: Restart) -> float:
        self.context.observer.restarted(model=self._model, group=self.config.name, reason=reason)
        self.faults += reason in FAULTS
        if reason is Restart.MEMORY:
            return 0.0
        if reason is Restart.LACKING:
            return LACKING_SECONDS
        delay = self._backoff.delay_after_loss()
        if self._backoff.in_crash_loop():
            for instance in self._instances:
                instance.fail_opening(BackendError(CRASH_LOOP))
        return delay

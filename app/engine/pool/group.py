"""An instance group at work: one batcher, its instances, and whether they are fit to serve."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from functools import partial

from app.contracts.errors import (
    BackendError,
    DeadlineExceeded,
    ModelNotReady,
    ModelOutputInvalid,
    PaddlepoolError,
    WorkerCrashed,
)
from app.contracts.ports import (
    Clock,
    EngineObserver,
    InferResult,
    Predictor,
    PredictorFactory,
    PredictorSpec,
    Ran,
)
from app.contracts.status import UNKNOWN_EFFECT, Effect, GroupStatus
from app.contracts.tensors import Tensors, shape_key
from app.engine.pool.instance import Instance, Run
from app.engine.pool.on_demand import OnDemand
from app.engine.pool.restart_backoff import RestartBackoff
from app.engine.pool.statistics import RunTimes, Statistics
from app.engine.pool.yielding import Yielding
from app.engine.queue.batcher import Batcher
from app.engine.queue.job import Job, all_finite
from app.repository.config import DynamicBatching, InstanceGroup
from app.repository.selftest import SelfTest

FIRST_RUN_SECONDS = 60.0
SHORT_RUN_SECONDS = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What every group of a registry shares."""

    open_predictor: PredictorFactory
    observer: EngineObserver
    clock: Clock
    max_resident_bytes: int
    yielding: Yielding = field(default_factory=Yielding)
    on_demand: OnDemand = field(default_factory=OnDemand)


class Group:
    """Instances are opened by start(), or by the first job when the group starts on demand.

    Such a group may be stopped while nobody uses it; its next job starts it again.
    """

    def __init__(
        self,
        config: InstanceGroup,
        *,
        model: str,
        version: int,
        spec: PredictorSpec,
        batching: DynamicBatching,
        selftest: SelfTest,
        warmups: tuple[Tensors, ...],
        statistics: Statistics,
        context: EngineContext,
    ) -> None:
        self.config = config
        self._model = model
        self._version = version
        self._spec = spec
        self._selftest = selftest
        self._warmups = warmups
        self._statistics = statistics
        self._context = context
        self._batching = batching
        self._queue_limit = batching.max_queue_size * config.count
        self._guard = RestartBackoff(context.clock)
        self._batcher = self._new_batcher()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._gently = False
        self._instances: list[Instance] = []
        self._failure: PaddlepoolError | None = None
        self.effect: Effect = UNKNOWN_EFFECT

    def _new_batcher(self) -> Batcher:
        observer, model = self._context.observer, self._model
        return Batcher(
            max_rows=self._batching.max_batch_size,
            max_delay=self._batching.max_queue_delay_ms / 1000,
            max_queue=self._queue_limit,
            clock=self._context.clock,
            on_rejected=lambda reason: observer.rejected(model=model, reason=reason),
        )

    def start(self, *, gently: bool = False) -> list[Future[None]]:
        """Open every instance, each in its own thread; a second call returns the same futures.

        Gently means one after another, each with what processor time the users of others leave.
        When one refuses the model, the group takes no job until the model is loaded again.
        """
        with self._lock:
            new = not self._instances and not self._batcher.closed
            if new:
                self._gently = gently
                self._instances = [
                    Instance(
                        f"{self._model}@{self._version} {self.config.name} {number}",
                        open_predictor=self._open,
                        batcher=self._batcher,
                        lost=self._lost,
                        deliver=self._deliver,
                        serving=partial(self._context.yielding.serving, self.config.threads),
                        clock=self._context.clock,
                        max_resident_bytes=self._context.max_resident_bytes,
                    )
                    for number in range(self.config.count)
                ]
            instances = self._instances
        if new:
            for instance in instances:
                instance.opened.add_done_callback(self._opened)
        return [instance.opened for instance in instances]

    @contextlib.contextmanager
    def reserving(self, *, deadline: float) -> Iterator[None]:
        """Hold a place in the queue while a job is made. Raises what submit() raises."""
        self._check_fit()
        batcher = self._used()
        batcher.reserve(deadline)
        try:
            yield
        finally:
            batcher.release()

    def submit(self, *jobs: Job) -> None:
        """Queue all of the jobs or none. Raises Overloaded, DeadlineExceeded, ModelNotReady."""
        self._check_fit()
        self._used().submit(*jobs)
        if not self._instances:
            self.start()

    def _used(self) -> Batcher:
        """Its batcher, for a job to come; raises Overloaded where a group may not start now."""
        if self.config.start == "on_demand" and not self._batcher.closed:
            self._context.on_demand.use(self)
        return self._batcher

    def idle(self) -> bool:
        return self._batcher.idle and all(each.opened.done() for each in self._instances)

    def stop(self) -> None:
        """End its processes, without waiting for them; the next job starts it again."""
        with self._lock:
            if self._batcher.closed:
                return
            batcher, self._batcher = self._batcher, self._new_batcher()
            instances, self._instances = self._instances, []
        log.info("%s %s: stopped to make room for another", self._model, self.config.name)
        for instance in instances:
            instance.ask_to_close()
        batcher.close(ModelNotReady("the instance group was stopped"))

    def _opened(self, opened: Future[None]) -> None:
        error = opened.exception()
        if isinstance(error, PaddlepoolError):
            log.error("%s %s: cannot start: %s", self._model, self.config.name, error)
            self._failure = error
            self._batcher.close(ModelNotReady("the instance group cannot start"))
            self._context.on_demand.forget(self)

    def _check_fit(self) -> None:
        if reason := self._unfit():
            self._context.observer.rejected(model=self._model, reason="not_ready")
            raise ModelNotReady(f"instance group {self.config.name!r}: {reason}")

    def _unfit(self) -> str:
        """Why no job may enter, or an empty string."""
        if self._failure is not None:
            return "cannot start"
        if self._guard.looping():
            return "its predictors keep crashing"
        return ""

    def ready(self) -> bool:
        """At least one instance takes batches, and they do not keep crashing."""
        return self._batcher.live > 0 and not self._unfit()

    def status(self) -> GroupStatus:
        started = bool(self._instances)
        ready = self.ready()
        return GroupStatus(
            name=self.config.name,
            backend=self.config.backend,
            threads=self.config.threads,
            count=self.config.count,
            live=self._batcher.live,
            queue_depth=self._batcher.depth,
            queue_limit=self._queue_limit,
            inflight=self._batcher.inflight,
            resident_bytes=sum(instance.resident_bytes() for instance in self._instances),
            started=started,
            ready=ready,
            reason="" if ready else self._reason(started),
            effect=self.effect,
        )

    def _reason(self, started: bool) -> str:
        """Why it is not ready, for those who look at it; a client is told less."""
        if self._failure is not None:
            return f"cannot start: {self._failure}"
        return self._unfit() or ("restarting" if started else "not started")

    def close(self) -> None:
        """Fail what is queued, end the processes. Safe to call twice and while starting."""
        with self._lock:
            instances = self._instances
            self._batcher.close(ModelNotReady("this model version is no longer served"))
        for instance in instances:
            instance.ask_to_close()
        for instance in instances:
            instance.join()
        self._context.on_demand.forget(self)

    def open_shadow(self, open_predictor: PredictorFactory) -> Predictor:
        """A tested predictor of this configuration that takes no part in the group's work.

        Raises ConfigError, BackendError, WorkerCrashed or DeadlineExceeded.
        """
        predictor = open_predictor(self._spec)
        try:
            self._selftest.check(predictor, timeout=FIRST_RUN_SECONDS)
        except BaseException:
            predictor.close()
            raise
        return predictor

    def _open(self, first: bool) -> Predictor:
        """A predictor that has proven itself and is warm. Raises ConfigError or BackendError."""
        if not (first and self._gently):
            return self._proven(self._context.open_predictor(self._spec), timed=first)
        with self._turn:
            suspension = self._context.yielding.suspension
            predictor = self._context.open_predictor(self._spec, suspension=suspension)
            # What stood still in between cannot be timed; the first jobs will be.
            self._proven(predictor, timed=False)
        predictor.settle()
        return predictor

    def _proven(self, predictor: Predictor, *, timed: bool) -> Predictor:
        try:
            self._selftest.check(predictor, timeout=FIRST_RUN_SECONDS)
            self._warm_up(predictor, timed=timed)
        except (WorkerCrashed, DeadlineExceeded) as error:
            predictor.close()
            raise BackendError("the predictor process ended during its first runs") from error
        except BaseException:
            predictor.close()
            raise
        return predictor

    def _warm_up(self, predictor: Predictor, *, timed: bool) -> None:
        """Run every configured shape; `timed` lets admission know how long each usually takes.

        A shape's first run is up to eight times slower than what admission should count with, so
        a second one is timed where that is short. Without it the self-test's shape is not run
        again: a replacement is back the sooner, and a reload costs the users less.
        """
        tested = [array.shape for array in self._selftest.inputs.values()]
        for inputs in self._warmups:
            if not timed:
                if [array.shape for array in inputs.values()] != tested:
                    predictor.run(inputs, timeout=FIRST_RUN_SECONDS)
                continue
            seconds = self._timed_run(predictor, inputs)
            if seconds < SHORT_RUN_SECONDS:
                seconds = self._timed_run(predictor, inputs)
            self._batcher.observed(shape_key(inputs), seconds)

    def _timed_run(self, predictor: Predictor, inputs: Tensors) -> float:
        began = self._context.clock()
        predictor.run(inputs, timeout=FIRST_RUN_SECONDS)
        return self._context.clock() - began

    def _lost(self, reason: str) -> float:
        self._context.observer.restarted(model=self._model, group=self.config.name, reason=reason)
        return 0.0 if reason == "memory" else self._guard.record()

    def _deliver(self, run: Run, ran: Ran) -> None:
        """Give each job its rows. Raises ValueError when the outputs do not have its rows."""
        received = self._context.clock()
        batch, infer = run.batch, ran.seconds
        parts = batch.split(ran.outputs)
        self._context.observer.batch_done(
            model=self._model,
            version=self._version,
            group=self.config.name,
            rows=batch.rows,
            seconds=infer,
        )
        finite = [all_finite(part) for part in parts]
        ended = self._context.clock()
        times = RunTimes(inputs=run.joining, infer=infer, outputs=ended - received)
        self._statistics.executed(batch.rows, times, ended=ended)
        for job, part, fit in zip(batch.jobs, parts, finite, strict=True):
            if not fit:
                job.fail(ModelOutputInvalid("the model's output contains NaN or infinity"))
                continue
            if not job.claim():
                continue  # its deadline was first, and counts as a failure
            queued = received - infer - run.joining - job.enqueued
            self._statistics.succeeded(job.rows, times, queued=queued, total=ended - job.enqueued)
            job.finish(
                InferResult(
                    outputs=part,
                    model=self._model,
                    version=self._version,
                    group=self.config.name,
                    queue_seconds=queued,
                    infer_seconds=infer,
                    batch_rows=batch.rows,
                )
            )


def wait_until_open(opened: list[Future[None]]) -> None:
    """Wait for every instance; raises the first refusal as soon as there is one."""
    done, _ = wait(opened, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()

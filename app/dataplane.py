"""The path of one request through Paddlepool. Read this first.

    lease ──► prepare (decode, preprocess) ──► submit every job (queue, infer) ──► finish
      │            codec process or thread         predictor processes      (postprocess, encode)
      └────────────── one model version from the first step to the last ──────────────┘

Everything that can fail because of one client's bytes fails in `prepare`, before the queue. A
request holds a place in the queue meanwhile: where there is none, it is refused before that work.
Whatever happens, what a request holds is given back: queued jobs are cancelled, pictures are
released, and the lease ends, also when the client goes away and the task is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from app.contracts.errors import DeadlineExceeded, InvalidParameter, ModelNotFound
from app.contracts.ports import Clock, Finished, InferResult, Pipeline, Prepared
from app.contracts.reasons import STAGES
from app.contracts.tensors import Tensors
from app.engine.queue.admission import Reservation
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry

T = TypeVar("T")


class RequestObserver(Protocol):
    """Told how long each stage of an answered request took; must not block or raise."""

    def stages_done(self, *, model: str, group: str, stages: Mapping[str, float]) -> None: ...


class TrafficListener(Protocol):
    """Told of requests as they come and go, from the event loop; must not block or raise."""

    def began(self) -> None: ...

    def ended(self) -> None: ...

    def answered(
        self, served: ServedModel, group: str, jobs: Sequence[Tensors], outputs: Sequence[Tensors]
    ) -> None:
        """The reply is settled: nothing done with these tensors can change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A task's result and where it came from. `stages` are seconds, in the order they ran."""

    value: Any
    model: str
    version: int
    group: str
    stages: Mapping[str, float]


class DataPlane:
    """Runs requests on leased model versions. Deadlines are `timeout` seconds from the call."""

    def __init__(
        self,
        registry: ModelRegistry,
        *,
        observer: RequestObserver,
        default_models: Mapping[str, str],
        traffic_listener: TrafficListener | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._registry = registry
        self._observer = observer
        self._default_models = default_models
        self._traffic_listener = traffic_listener
        self._clock = clock

    async def run(
        self,
        task: str,
        payload: Any,
        *,
        model: str | None = None,
        version: int | None = None,
        group: str | None = None,
        timeout: float,
    ) -> Answer:
        """Answer one request of a task ("segment", "sentiment") with its pipeline.

        Raises what the pipeline says of the payload (InputError), ModelNotFound, ModelNotReady,
        Overloaded, DeadlineExceeded, WorkerCrashed and ModelOutputInvalid.
        """
        deadline = self._clock() + timeout
        chosen = model or self._default_model(task)
        with self._announced(), self._registry.lease(chosen, version) as served:
            pipeline = _pipeline_of(served, task)
            group = group or served.config.default_group
            async with _within(timeout, served, group):
                with served.reserving(group=group, deadline=deadline) as reservation:
                    prepared = await _prepared(pipeline.prepare(payload, deadline=deadline))
                    try:
                        results = await self._infer_all(
                            served, prepared.jobs, group, deadline, reservation=reservation
                        )
                    except BaseException:
                        prepared.release()
                        raise
                outputs = [result.outputs for result in results]
                finished = await _finished(pipeline, prepared, outputs, deadline)
            queued = max(result.queue_seconds for result in results)
            inferred = max(result.infer_seconds for result in results)
            stages = _in_order(
                prepared.stages, {"queue": queued, "infer": inferred}, finished.stages
            )
            self._observer.stages_done(model=served.name, group=group, stages=stages)
            if self._traffic_listener is not None:
                self._traffic_listener.answered(served, group, prepared.jobs, outputs)
            return Answer(
                value=finished.value,
                model=served.name,
                version=served.version,
                group=group,
                stages=stages,
            )

    async def infer(
        self,
        served: ServedModel,
        inputs: Tensors,
        *,
        group: str | None = None,
        timeout: float,
        priority: int = 0,
    ) -> InferResult:
        """Run raw tensors on a model that the caller leases; the second front door."""
        deadline = self._clock() + timeout
        with self._announced():
            async with _within(timeout, served, group):
                [result] = await self._infer_all(served, [inputs], group, deadline, priority)
        stages = {"queue": result.queue_seconds, "infer": result.infer_seconds}
        self._observer.stages_done(model=served.name, group=result.group, stages=stages)
        if self._traffic_listener is not None:
            self._traffic_listener.answered(served, result.group, [inputs], [result.outputs])
        return result

    async def _infer_all(
        self,
        served: ServedModel,
        jobs: Sequence[Tensors],
        group: str | None,
        deadline: float,
        priority: int = 0,
        reservation: Reservation | None = None,
    ) -> list[InferResult]:
        """Submit every job, or none: what is queued when one is refused or fails is cancelled."""
        return await _results(
            served.submit_all(
                jobs, deadline=deadline, group=group, priority=priority, reservation=reservation
            )
        )

    @contextlib.contextmanager
    def _announced(self) -> Iterator[None]:
        if self._traffic_listener is None:
            yield
            return
        self._traffic_listener.began()
        try:
            yield
        finally:
            self._traffic_listener.ended()

    def _default_model(self, task: str) -> str:
        try:
            return self._default_models[task]
        except KeyError:
            raise ModelNotFound(f"no model for the task {task!r} is configured") from None


def _pipeline_of(served: ServedModel, task: str) -> Pipeline:
    if served.pipeline is None or served.config.pipeline != task:
        raise InvalidParameter(
            f"model {served.name!r} does not do this task: it serves "
            f"{served.config.pipeline or 'raw tensors only'}, this endpoint needs {task}",
            limit=task,
            received=served.config.pipeline or "none",
        )
    return served.pipeline


@contextlib.asynccontextmanager
async def _within(timeout: float, served: ServedModel, group: str | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        chosen = group or served.config.default_group
        starting = any(
            status.name == chosen and status.started and status.live == 0
            for status in served.groups()
        )
        why = f": instance group {chosen!r} is still starting" if starting else ""
        raise DeadlineExceeded(
            f"no answer within the deadline of {timeout * 1000:.0f} ms{why}",
            limit=round(timeout, 3),
        ) from None


# What a future raises has the frames it is raised through in its traceback, and the future has what
# it raises. A frame that names the future closes the circle, and all that hangs on it, pictures and
# tensors, stays until the garbage collector comes by: these functions forget their futures.


async def _settled(futures: Sequence[Future[T]]) -> None:
    """Until all of them, futures of another thread, are done or one has failed.

    The event loop is woken once for all of them: a wake-up for each would take the interpreter
    from the thread that is about to start the next batch.
    """
    loop = asyncio.get_running_loop()
    settled = asyncio.Event()
    waiting = set(futures)

    def settle(future: Future[T]) -> None:
        waiting.discard(future)  # atomic: no two threads settle one future
        failed = future.cancelled() or future.exception() is not None
        if (failed or not waiting) and not loop.is_closed():
            loop.call_soon_threadsafe(settled.set)

    for each in futures:
        each.add_done_callback(settle)
    try:
        await settled.wait()
    finally:
        waiting.clear()


async def _results(futures: list[Future[T]]) -> list[T]:
    """Await futures of another thread, or the first failure among them; what is not done then is
    cancelled. Empties the list."""
    done: Future[T] | None = None
    try:
        await _settled(futures)
        for done in [each for each in futures if each.done()]:
            done.result()
        return [each.result() for each in futures]
    finally:
        done = None
        while futures:
            futures.pop().cancel()


async def _result(future: Future[T]) -> T:
    """Await a future of another thread; one that is done already costs no turn of the loop.

    If this task is cancelled meanwhile, so is the future; and the other way round.
    """
    try:
        if not future.done():
            await _settled([future])
        if future.cancelled():
            raise asyncio.CancelledError
        return future.result()
    except asyncio.CancelledError:
        future.cancel()
        raise
    finally:
        del future


async def _prepared(future: Future[Prepared]) -> Prepared:
    """Await the future; if this task is cancelled meanwhile, release what still comes of it."""
    try:
        return await _result(future)
    except asyncio.CancelledError:
        future.add_done_callback(_release_unclaimed)
        raise
    finally:
        del future


async def _finished(
    pipeline: Pipeline, prepared: Prepared, outputs: Sequence[Tensors], deadline: float
) -> Finished:
    """Finish what was prepared, and release it whatever happens."""
    try:
        finishing = pipeline.finish(prepared, outputs, deadline=deadline)
    except BaseException:
        prepared.release()
        raise
    # From here finish() owns what was prepared: it may still be reading the picture in its thread
    # when this task is cancelled.
    finishing.add_done_callback(lambda _: prepared.release())
    try:
        return await _result(finishing)
    finally:
        del finishing


def _release_unclaimed(future: Future[Prepared]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()


def _in_order(*parts: Mapping[str, float]) -> dict[str, float]:
    measured = {stage: seconds for part in parts for stage, seconds in part.items()}
    return {stage: measured[stage] for stage in STAGES if stage in measured}

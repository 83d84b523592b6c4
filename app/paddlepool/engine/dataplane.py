"""The path of one request through Paddlepool. Read this first.

    run    lease ─► reserve ─► read ─► pipeline ─► end of lease
    infer  lease ─► reserve ─► read ─► one job ──► end of lease

`run` answers a task (/segment, /sentiment): its pipeline decodes, runs jobs and encodes in one
coroutine. `infer` answers raw tensors (/v2). `read` gets the payload or the tensors from the body.
`run` and `infer` both hold one model version, by a lease, from the first step to the last; a
composed model is leased with all of its parts (paddlepool.engine.registry.composed). A job of more
rows than a run takes is divided, and of a request with many jobs only some are queued at a time
(paddlepool.engine.registry.parts).

Rejections come early. `reserve` (paddlepool.engine.queue.admission) rejects a request before any
work if the queue is full or the request cannot finish before its deadline. `infer` reserves a place
only while it reads a large body; otherwise the queue accepts or rejects the job when it is
submitted. Faults in a client's data are found by the pipeline, in `read` or in the check of
tensors, before a job enters the queue; some values out of range are found only in the run. A
request always releases what it holds (queued jobs, pictures, the lease), even if it is cancelled.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from paddlepool.contracts import errors
from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.ports import WHOLE, Clock, InferResult, Pipeline, RequestOutput
from paddlepool.contracts.reasons import STAGES
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.queue.admission import Reservation
from paddlepool.engine.registry.composed import ComposedModel, single
from paddlepool.engine.registry.composer import AnyModel
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.engine.registry.request_context import (
    LARGE_TENSORS,
    ModelContext,
    PartOfRequest,
)

Payload = TypeVar("Payload")


def ready(payload: Payload) -> Callable[[], Awaitable[Payload]]:
    """Return a `read` for DataPlane.run() that gives a payload which is in memory already."""

    async def read() -> Payload:
        return payload

    return read


class TrafficListener(Protocol):
    """Called on the event loop as requests begin and end; must not block or raise."""

    def began(self) -> None: ...

    def ended(self) -> None: ...

    def completed(self, served: ServedModel, group: str, inputs: Tensors, outputs: Tensors) -> None:
        """Receive the tensors of one run of an answered request, which must not be changed.

        Not called if the request ran no job; for a composed model, called once for each part that
        ran. The reply to a tensor request is made from the same arrays later.
        """

    def answered(self, served: ComposedModel, payload: Any) -> None:
        """Receive the payload of an answered request to a composed model."""


StagesDone = Callable[[RequestOutput, Sequence[InferResult]], None]
"""Receives the output of each answered request that ran jobs, and the results of its runs.

The results have no outputs. Must not block or raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRequest:
    """Tensors to run as one job.

    `group` None means the default group. `priority` 0 is normal, and a larger number is less
    urgent. `timeout` is in seconds from the call of infer(). `state` is any value of the caller's;
    infer() returns it with the request.
    """

    inputs: Tensors
    group: str | None
    priority: int
    timeout: float
    state: Any = None


@dataclass(frozen=True, slots=True)
class DataPlane:
    """Runs requests on leased model versions. Belongs to the event loop.

    `default_models` maps tasks to the models of requests that name none.
    """

    registry: ModelRegistry
    default_models: Mapping[str, str]
    stages_done: Sequence[StagesDone] = ()
    traffic_listener: TrafficListener | None = None
    clock: Clock = time.monotonic

    async def run(
        self,
        task: str,
        read: Callable[[], Awaitable[Payload]],
        *,
        model: str | None = None,
        version: int | None = None,
        group: str | None = None,
        timeout: float,
    ) -> RequestOutput:
        """Answer one request of a task ("segment", "sentiment") with its pipeline.

        By default, the task's default model answers, with the version that ModelRegistry.acquire()
        chooses and its default group. For a composed model, `group` has the form that
        ComposedModel.parts_with() takes. `read` returns the pipeline's payload. It is called when a
        place in the queue has been reserved, because reading some bodies is costly. The deadline is
        `timeout` seconds from the call of run().

        Raises the errors of `read`, InvalidParameter (task, group), the pipeline's errors about the
        payload (InputError), ModelNotFound, ModelNotReady, GroupNotRunning, Overloaded,
        DeadlineExceeded, WorkerCrashed, BackendError and ModelOutputInvalid. A composed model that
        has not passed its test yet is tested first, which may raise the errors of
        ComposedModel.test().
        """
        deadline = self.clock() + timeout
        chosen = model or self.default_model(task)
        with _Leased(self, chosen, version) as served:
            pipeline = _pipeline_of(served, task)
            context = ModelContext(deadline=deadline, parts=_parts_of(served, group))
            _check_may_start(context.parts.values())
            try:
                async with asyncio.timeout(timeout):
                    with _reserve(served, context) as context.reservation:
                        if isinstance(served, ComposedModel):
                            await served.tested()
                        payload = await read()
                        value = await pipeline.run(payload, context)
            except (TimeoutError, errors.DeadlineExceeded):  # the queue's timer may come first
                raise _too_late(context, timeout) from None
            if self.traffic_listener is not None and isinstance(served, ComposedModel):
                self.traffic_listener.answered(served, payload)
            return self._complete(served, context, value)

    async def infer(
        self,
        model: str,
        read: Callable[[ServedModel], Awaitable[TensorRequest]],
        *,
        version: int | None = None,
        place_timeout: float | None = None,
        checked_in: Executor | None = None,
    ) -> tuple[TensorRequest, RequestOutput]:
        """Run the TensorRequest that `read` returns; return it with its RequestOutput.

        `read` gets the leased version. Pass `place_timeout`, in seconds, for a large body: a place
        in the default group's queue is then reserved before `read` runs. Overloaded is raised if
        there is no place, or if the job would not finish within this time. More than LARGE_TENSORS
        bytes are checked in a thread of `checked_in`, or of asyncio's executor if that is None.

        Raises the errors of `read`, InvalidTensor, InvalidParameter (group, or a composed model),
        ModelNotFound, ModelNotReady, GroupNotRunning, Overloaded, DeadlineExceeded, WorkerCrashed,
        BackendError and ModelOutputInvalid.
        """
        began = self.clock()
        with _Leased(self, model, version) as served, contextlib.ExitStack() as held:
            served = single(served)
            reservation = None
            if place_timeout is not None:
                until = began + place_timeout
                reservation = held.enter_context(served.reserve(deadline=until))
            request = await read(served)
            group = served.config.default_group if request.group is None else request.group
            part = PartOfRequest(served, group)
            if group != served.config.default_group:
                held.close()  # the reserved place is in another queue
                reservation = None
                _check_may_start([part])
            context = ModelContext(
                deadline=began + request.timeout, parts={WHOLE: part}, priority=request.priority
            )
            context.reservation = reservation
            try:
                async with asyncio.timeout(context.deadline - self.clock()):
                    check = partial(served.checked, [request.inputs])
                    if served.nbytes([request.inputs]) > LARGE_TENSORS:
                        loop = asyncio.get_running_loop()
                        checked = await loop.run_in_executor(checked_in, check)
                    else:
                        checked = check()
                    [outputs] = await context.run(checked)
            except (TimeoutError, errors.DeadlineExceeded):
                raise _too_late(context, request.timeout) from None
            except errors.RunRefused as refused:
                # The tensors are at fault: they ran alone, and the model passed its self-test.
                shapes = (f"{name} {list(array.shape)}" for name, array in request.inputs.items())
                raise errors.InvalidTensor(
                    f"the model cannot be run on {', '.join(shapes)}, because these shapes do not "
                    f"fit or a value is out of range. The framework says: {refused.library_text}"
                ) from None
            return request, self._complete(served, context, outputs)

    def _complete(self, served: AnyModel, context: ModelContext, value: Any) -> RequestOutput:
        """Return a request's output; if it ran jobs, call `stages_done` and `traffic_listener`."""
        seconds = context.stages
        order = dict.fromkeys((*STAGES, *seconds))  # a task may have other stages, too
        output = RequestOutput(
            value=value,
            model=served.name,
            version=served.version,
            group=_group_text(context.parts),
            stages={stage: seconds[stage] for stage in order if stage in seconds},
        )
        if completed := context.completed:
            results = [result for runs in completed.values() for result in runs.results]
            for receive in self.stages_done:
                receive(output, results)
            if isinstance(served, ComposedModel):
                served.record(completed)
            if (listener := self.traffic_listener) is not None:
                for part, runs in completed.items():
                    listener.completed(*context.parts[part], runs.inputs, runs.outputs)
        return output

    def default_model(self, task: str) -> str:
        """Return the model for requests of `task` that name none. Raises ModelNotFound."""
        try:
            return self.default_models[task]
        except KeyError:
            raise errors.ModelNotFound(f"no model for the task {task!r} is configured") from None


class _Leased:
    """Leases a version during a block, between began() and ended() of the traffic listener.

    Entering raises ModelNotFound and ModelNotReady. A generator as context manager would take
    longer.
    """

    __slots__ = ("_model", "_plane", "_served", "_version")

    def __init__(self, plane: DataPlane, model: str, version: int | None) -> None:
        self._plane = plane
        self._model = model
        self._version = version

    def __enter__(self) -> AnyModel:
        if (listener := self._plane.traffic_listener) is not None:
            listener.began()
        try:
            self._served = self._plane.registry.acquire(self._model, self._version, spread=True)
        except BaseException:
            if listener is not None:
                listener.ended()
            raise
        return self._served

    def __exit__(self, *_: object) -> None:
        try:
            self._served.release()
        finally:
            if (listener := self._plane.traffic_listener) is not None:
                listener.ended()


def _parts_of(served: AnyModel, group: str | None) -> Mapping[str, PartOfRequest]:
    """Return the version and group of each part of a request, by part.

    For a composed model, raises the errors of parts_with(); for another, `group` is not checked.
    """
    if isinstance(served, ComposedModel):
        return served.parts_with(group)
    return {WHOLE: PartOfRequest(served, group or served.config.default_group)}


def _reserve(served: AnyModel, context: ModelContext) -> AbstractContextManager[Reservation]:
    """Return a context manager that holds a place in the queue for a request.

    Raises InvalidParameter (group), Overloaded and ModelNotReady, at once or on entering.
    """
    if isinstance(served, ComposedModel):
        return served.reserve(context)
    return served.reserve(group=context.parts[WHOLE].group, deadline=context.deadline)


def _group_text(parts: Mapping[str, PartOfRequest]) -> str:
    if WHOLE in parts:
        return parts[WHOLE].group
    return ",".join([f"{name}:{part.group}" for name, part in parts.items()])


def _too_late(context: ModelContext, timeout: float) -> errors.DeadlineExceeded:
    why = ""
    for served, group in context.parts.values():
        if any(
            status.name == group and status.started and status.live == 0
            for status in served.groups()
        ):
            why = f": instance group {group!r} has no predictor running"
    limit = timeout * 1000
    return errors.DeadlineExceeded(
        f"no answer within the deadline of {limit:.6g} ms{why}", limit=round(limit)
    )


def _check_may_start(parts: Iterable[PartOfRequest]) -> None:
    """Raise GroupNotRunning if a group is not started and the caller may not start one.

    Starting a group is costly: it has its own processes, each with the whole model in memory. Any
    caller may start a default group.
    """
    for served, group in parts:
        if group == served.config.default_group or CALLER.get().may_start:
            continue
        if any(status.name == group and not status.started for status in served.groups()):
            raise errors.GroupNotRunning(
                f"instance group {group!r} is not running, and this request has no key that may "
                "start one"
            )


def _pipeline_of(served: AnyModel, task: str) -> Pipeline:
    if served.pipeline is None or served.config.pipeline != task:
        raise errors.InvalidParameter(
            f"model {served.name!r} does not do this task: it serves "
            f"{served.config.pipeline or 'raw tensors only'}, this endpoint needs {task}",
            limit=task,
            received=served.config.pipeline or "none",
        )
    return served.pipeline

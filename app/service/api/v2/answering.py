"""Run a parsed request and return its outputs. HTTP and gRPC share this code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from app.contracts.errors import FileTooLarge
from app.contracts.task_tensors import TaskTensors
from app.contracts.tensors import Tensors
from app.engine.dataplane import Answer, TensorRequest
from app.engine.registry.model import ServedModel
from app.service.api.offload import beside_the_loop
from app.service.api.routing import split_model
from app.service.api.services import Services
from app.service.api.v2.documents import Expected, ReplyForm, expected_of_model, expected_of_task
from app.service.api.v2.tasks import VERSION, check_version, task_named

Parse = Callable[..., TensorRequest]
"""Takes `expected=`, an Expected. The returned request's state is a ReplyForm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """The outputs, the form of the reply, and the model or task named in the reply."""

    outputs: Tensors
    form: ReplyForm
    answer: Answer
    model: str
    version: int


def check_size(services: Services, model: str, size: int) -> None:
    """Raise FileTooLarge if the request exceeds the limit of the task's own endpoint."""
    task = task_named(services, model)
    if task is not None and size > task.max_bytes:
        raise FileTooLarge(
            f"The body has {size} bytes, the limit for {model!r} is {task.max_bytes}.",
            limit=task.max_bytes,
            received=size,
        )


async def infer_tensors(
    services: Services,
    model: str,
    version: int | None,
    parse: Parse,
    *,
    document_bytes: int,
    body_bytes: int,
    place_timeout: float | None = None,
) -> Inferred:
    """Run a request for `model`, or for the task of that name.

    `parse` runs in a thread if it has much to read. For a model, `document_bytes` decides, because
    raw tensors are not copied. For a task, `body_bytes` decides, because strings are read one by
    one. Raises the errors of `parse` and of the data plane.
    """

    async def read(expected: Expected, size: int) -> TensorRequest:
        return await beside_the_loop(services, partial(parse, expected=expected), size=size)

    async def read_for(served: ServedModel) -> TensorRequest:
        return await read(expected_of_model(served), document_bytes)

    task = task_named(services, model)
    if task is not None:
        check_version(version)
        asked = await read(expected_of_task(task), body_bytes)
        return await _run_task(services, model, task, asked)
    asked, answer = await services.dataplane.infer(
        model,
        read_for,
        version=version,
        place_timeout=place_timeout,
        checked_in=services.operations,
    )
    return Inferred(
        outputs=answer.value,
        form=asked.state,
        answer=answer,
        model=answer.model,
        version=answer.version,
    )


async def _run_task(
    services: Services, name: str, task: TaskTensors, asked: TensorRequest
) -> Inferred:
    form: ReplyForm = asked.state
    payload = task.read(asked.inputs, form.options)
    chosen, version = split_model(form.options.get("model"))
    answer = await services.dataplane.run(
        name, payload, model=chosen, version=version, group=asked.group, timeout=asked.timeout
    )
    if padding := task.padding(answer.value):
        services.metrics.padded(model=answer.model, group=answer.group, tokens=padding)
    outputs = task.write(answer.value, form.options)
    return Inferred(outputs=outputs, form=form, answer=answer, model=name, version=VERSION)

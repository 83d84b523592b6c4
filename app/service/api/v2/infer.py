"""POST /v2/models/{model}/infer: tensors in, tensors out, for a model or a whole task.

gRPC shares `check_size` and `infer_tensors`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response

from app.contracts.errors import FileTooLarge, InvalidTensor
from app.contracts.tensors import TaskTensors, Tensors
from app.engine.dataplane import Answer, TensorRequest
from app.engine.registry.model import ServedModel
from app.service.api.problems import PROTOCOL, documented
from app.service.api.routes import answer_headers, split_model
from app.service.api.services import Services, run_off_loop, services_of
from app.service.api.v2.bodies import (
    may_name_group,
    parse_request,
    place_timeout,
    write_reply,
    written_size,
)
from app.service.api.v2.documents import (
    Expected,
    ReplyForm,
    expected_of_model,
    expected_of_task,
    name_in,
)
from app.service.api.v2.metadata import VERSION, add_by_version, task_named
from app.service.api.v2.schema import RAW, InferReply, described_request
from app.service.api.v2.tensors import BINARY_HEADER, NO_SHARED_MEMORY
from app.settings.server import Settings


def router(settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["v2"])
    refusals = documented(400, 404, 500, 503, 504, form=PROTOCOL)
    # JSON comes first because some client generators read only the first type.
    content = {"application/json": {}, "application/octet-stream": RAW}
    reply = {"model": InferReply, "content": content}
    add_by_version(
        routes,
        "/infer",
        infer,
        one="Run one version.",
        operation="Infer",
        methods=["POST"],
        max_body_size=settings.infer_max_bytes,
        response_class=Response,
        responses={200: reply, **refusals},
        openapi_extra=described_request(),
    )
    for kind in ("system", "cuda"):
        routes.add_api_route(
            f"/v2/{kind}sharedmemory/{{rest:path}}",
            refuse_shared_memory,
            methods=["GET", "POST"],
            include_in_schema=False,  # useless to OpenAPI clients
        )
    return routes


async def infer(request: Request, model: str, version: int | None) -> Response:
    """Run the version that answers requests without a version."""
    services = services_of(request)
    settings = services.settings
    length = _header_length(request.headers.get(BINARY_HEADER))
    check_size(services, model, int(request.headers.get("content-length", "0")))
    body = await request.body()
    check_size(services, model, len(body))
    cap = settings.infer_json_max_bytes
    json_bytes = len(body) if length is None else min(length, len(body))
    if json_bytes > cap:
        raise FileTooLarge(
            f"The JSON part has {json_bytes} bytes, the limit is {cap}; larger tensors can be "
            f"sent raw, with {BINARY_HEADER}."
        )

    found = await infer_tensors(
        services,
        model,
        version,
        partial(parse_request, body, header_length=length, settings=settings),
        document_bytes=json_bytes,
        body_bytes=len(body),
        place_timeout=place_timeout(
            len(body), names_group=may_name_group(body, json_bytes), settings=settings
        ),
    )
    write = partial(
        write_reply, found.outputs, found.form, model=found.model, version=found.version
    )
    size = written_size(found.outputs, found.form)
    content, json_length = await run_off_loop(services, write, size=size)
    headers = answer_headers(found.answer)
    if json_length is None:
        return Response(content, media_type="application/json", headers=headers)
    headers[BINARY_HEADER] = str(json_length)
    return Response(content, media_type="application/octet-stream", headers=headers)


def _header_length(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 12):
        raise InvalidTensor(f"{BINARY_HEADER} must be a number of bytes")
    return int(value)


Parse = Callable[..., TensorRequest]
"""A function with the parameter `expected`, an Expected. Returns a request whose state is a
ReplyForm."""


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
            f"The body has {size} bytes, the limit for {model!r} is {task.max_bytes}."
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
        return await run_off_loop(services, partial(parse, expected=expected), size=size)

    async def read_for(served: ServedModel) -> TensorRequest:
        return await read(expected_of_model(served), document_bytes)

    task = task_named(services, model, version)
    if task is not None:
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
    chosen, version = split_model(name_in(form.options, "model", of="a model"))
    answer = await services.dataplane.run(
        name, payload, model=chosen, version=version, group=asked.group, timeout=asked.timeout
    )
    if padding := task.padding(answer.value):
        services.metrics.padded(model=answer.model, group=answer.group, tokens=padding)
    outputs = task.write(answer.value, form.options)
    return Inferred(outputs=outputs, form=form, answer=answer, model=name, version=VERSION)


async def refuse_shared_memory(rest: str) -> None:
    """Reject shared memory (400): a client could write to a region while the server reads it."""
    del rest
    raise InvalidTensor(f"{NO_SHARED_MEMORY}; send tensors in the request, raw or as JSON")

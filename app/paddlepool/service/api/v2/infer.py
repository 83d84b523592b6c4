"""POST /v2/models/{model}/infer: tensors in, tensors out, for a model or a whole task.

The pydantic models only describe requests and replies for OpenAPI; `documents` reads requests,
because tensors may be large. gRPC shares `check_size` and `infer_tensors`.

GET /v2/models/{model}/sample, an extension of this server, returns a request that the model
answers. Its tensors are those of the self-test's first case, raw after the JSON, because the input
of a network for pictures is millions of numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from paddlepool.contracts.errors import FileTooLarge, InvalidTensor
from paddlepool.contracts.ports import RequestOutput
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.dataplane import TensorRequest, ready
from paddlepool.engine.registry.model import ServedModel
from paddlepool.service.api.errors import PROTOCOL, documented
from paddlepool.service.api.routes import output_headers, split_model, whole_number
from paddlepool.service.api.services import LARGE_BYTES, Services, run_off_loop, services_of
from paddlepool.service.api.v2 import documents
from paddlepool.service.api.v2.documents import Expected, ReplyForm
from paddlepool.service.api.v2.models import VERSION, add_by_version, task_named
from paddlepool.service.api.v2.tensors import BINARY_HEADER, DATATYPES, NO_SHARED_MEMORY
from paddlepool.settings.server import Settings

Datatype = Annotated[str, WithJsonSchema({"type": "string", "enum": list(DATATYPES)})]
Shape = list[int]
_TYPE = Field(None, description="`base64`: the strings are base64 of bytes. Others are ignored.")


class InferRequestParameters(BaseModel):
    """Parameters of a request. A task also accepts `model` and the options of its own endpoint, but
    ignores `priority`. Ignored and unknown parameters are named in the reply."""

    model_config = ConfigDict(extra="allow")

    instance_group: str | None = Field(None, description="The instance group to run on.")
    predictor: str | None = Field(None, description="Alias of `instance_group`.")
    priority: int | None = Field(
        None, ge=0, le=1_000, description="Jobs with a lower number run first; 0 if left out."
    )
    timeout: int | None = Field(
        None, ge=0, description="Deadline in microseconds; 0: the server's default."
    )
    binary_data_output: bool | None = Field(None, description="Send all outputs raw.")
    content_type: str | None = _TYPE


class InferInputParameters(BaseModel):
    binary_data_size: int | None = Field(
        None, ge=0, description="Bytes of the raw tensor after the JSON, instead of `data`."
    )
    content_type: str | None = _TYPE


class InferInput(BaseModel):
    name: str
    datatype: Datatype
    shape: Shape
    data: list[Any] | None = Field(
        None, description="Row-major, flat or nested as deep as `shape`: numbers or strings."
    )
    parameters: InferInputParameters | None = None


class InferOutputParameters(BaseModel):
    binary_data: bool | None = Field(None, description="Send this output raw after the JSON.")
    classification: int | None = Field(
        None,
        ge=0,
        le=documents.MAX_CLASSES,
        description="Return this many largest values as `value:index:label`.",
    )
    content_type: str | None = _TYPE


class InferRequestedOutput(BaseModel):
    name: str
    parameters: InferOutputParameters | None = None


class InferRequest(BaseModel):
    id: str | None = Field(None, max_length=documents.MAX_ID_CHARACTERS)
    inputs: list[InferInput]
    outputs: list[InferRequestedOutput] | None = Field(None, description="All outputs if absent.")
    parameters: InferRequestParameters | None = None


class InferReplyParameters(BaseModel):
    ignored_parameters: str = Field(description="Names of the request's ignored parameters.")


class InferReplyTensorParameters(BaseModel):
    binary_data_size: int = Field(0, description="Bytes of the raw tensor after the JSON.")
    content_type: Literal["base64"] = Field("base64", description="Set for strings of binary data.")


class InferReplyTensor(BaseModel):
    name: str
    datatype: Datatype
    shape: Shape
    data: list[Any] = Field([], description="Row-major and flat; absent if the tensor is raw.")
    parameters: InferReplyTensorParameters = InferReplyTensorParameters()


class InferReply(BaseModel):
    model_name: str
    model_version: str
    id: str = Field("", description="The id of the request, if any.")
    parameters: InferReplyParameters = InferReplyParameters(**{documents.IGNORED: ""})
    outputs: list[InferReplyTensor]


RAW = {"schema": {"type": "string", "format": "binary"}}
"""Schema of a JSON document followed by the raw tensors that it declares."""


EXAMPLE = {
    "inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["今天收到了大学的录取通知书"]}
    ]
}


def router(settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["v2"])
    refusals = documented(400, 404, 500, 503, 504, form=PROTOCOL)
    request = {"$ref": "#/components/schemas/InferRequest"}  # application.py adds the schema
    # JSON comes first because some client generators read only the first type.
    content = {
        "application/json": {"schema": request, "example": EXAMPLE},
        "application/octet-stream": RAW,
    }
    length = {"type": "integer", "minimum": 0}
    header = {
        "name": BINARY_HEADER,
        "in": "header",
        "required": False,
        "description": "Length in bytes of the JSON before raw tensors; absent in plain JSON.",
        "schema": length,
    }
    replies = {"application/json": {}, "application/octet-stream": RAW}
    add_by_version(
        routes,
        "/infer",
        infer,
        one="Run one version.",
        operation="Infer",
        methods=["POST"],
        max_body_size=settings.infer_max_bytes,
        response_class=Response,
        responses={200: {"model": InferReply, "content": replies}, **refusals},
        openapi_extra={
            "parameters": [header],
            "requestBody": {"required": True, "content": content},
        },
    )
    described = {"description": "Length in bytes of the JSON before the raw tensors."}
    reply = {
        "content": {"application/octet-stream": RAW},
        "headers": {BINARY_HEADER: {**described, "schema": length}},
    }
    add_by_version(
        routes,
        "/sample",
        sample,
        one="A request that one version answers.",
        operation="Sample",
        response_class=Response,
        responses={200: reply, **documented(404, 503, form=PROTOCOL)},
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
    header = request.headers.get(BINARY_HEADER)
    length = None if header is None else whole_number(header, digits=12)
    if header is not None and length is None:
        raise InvalidTensor(f"{BINARY_HEADER} must be a number of bytes")
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

    result = await infer_tensors(
        services,
        model,
        version,
        partial(documents.parse_request, body, header_length=length, settings=settings),
        document_bytes=json_bytes,
        body_bytes=len(body),
        names_group=may_name_group(body, json_bytes),
    )
    outputs, form = result.outputs, result.form
    write = partial(
        documents.write_reply, outputs, form, model=result.model, version=result.version
    )
    size = documents.written_size(outputs, form)
    content, json_length = await run_off_loop(services, write, size=size)
    headers = output_headers(result.origin)
    if json_length is None:
        return Response(content, media_type="application/json", headers=headers)
    headers[BINARY_HEADER] = str(json_length)
    return Response(content, media_type="application/octet-stream", headers=headers)


async def sample(request: Request, model: str, version: int | None) -> Response:
    """A request that the model answers: a body for `/infer` with raw tensors; a task has none."""
    with services_of(request).registry.lease(model, version) as served:
        content, json_length = documents.write_request(served.selftest.inputs)
    headers = {BINARY_HEADER: str(json_length)}
    return Response(content, media_type="application/octet-stream", headers=headers)


@dataclass(frozen=True, slots=True)
class Inferred:
    """The outputs of a request, the form of the reply, and the model or task that the reply names.

    `origin` names the model that ran.
    """

    outputs: Tensors
    form: ReplyForm
    origin: RequestOutput
    model: str
    version: int


def check_size(services: Services, model: str, size: int) -> None:
    """Raise FileTooLarge if `model` is a task and its endpoint accepts fewer bytes than `size`."""
    task = task_named(services, model)
    if task is not None and size > task.max_bytes:
        limit = task.max_bytes
        raise FileTooLarge(f"The body has {size} bytes, the limit for {model!r} is {limit}.")


async def infer_tensors(
    services: Services,
    model: str,
    version: int | None,
    parse: Callable[..., TensorRequest],
    *,
    document_bytes: int,
    body_bytes: int,
    names_group: bool,
) -> Inferred:
    """Run a request for `model`, or for the task of that name.

    `parse` takes `expected`, an Expected, and returns a request whose state is a ReplyForm. It runs
    in a thread if it has much to read. For a model, the size of the JSON, `document_bytes`,
    decides, because raw tensors are not copied. For a task, `body_bytes` decides, because strings
    are read one by one. `names_group` tells whether the body may name an instance group. Raises the
    errors of `parse`, task_named(), run_off_loop(), split_model(), the task's `read` and the data
    plane.
    """
    task = task_named(services, model, version)
    if task is not None:
        expected = Expected(
            inputs=task.inputs,
            outputs=task.outputs,
            options=task.parameters,
            optional=task.optional,
            opaque=task.opaque,
        )
        read = partial(parse, expected=expected)
        request = await run_off_loop(services, read, size=body_bytes)
        form: ReplyForm = request.state
        chosen, number = split_model(form.model)
        output = await services.dataplane.run(
            model,
            ready(task.read(request.inputs, form.options)),
            model=chosen,
            version=number,
            group=request.group,
            timeout=request.timeout,
        )
        if padding := task.padding(output.value):
            services.metrics.padded(model=output.model, group=output.group, tokens=padding)
        return Inferred(task.write(output.value), form, output, model, VERSION)

    async def read_for(served: ServedModel) -> TensorRequest:
        labels = served.config.parameters.get("labels", ())
        expected = Expected(
            inputs=served.inputs,
            outputs=served.outputs,
            labels=labels if isinstance(labels, list | tuple) else (),
            batched=served.batched,
        )
        return await run_off_loop(services, partial(parse, expected=expected), size=document_bytes)

    request, output = await services.dataplane.infer(
        model,
        read_for,
        version=version,
        place_timeout=place_timeout(body_bytes, names_group, services.settings),
        checked_in=services.operations,
    )
    return Inferred(output.value, request.state, output, output.model, output.version)


def may_name_group(body: bytes, json_bytes: int) -> bool:
    """Return whether the first `json_bytes` of a body, its JSON, may name an instance group."""
    names = (b'"%b"' % name.encode() for name in documents.GROUP_PARAMETERS)
    return any(body.find(name, 0, json_bytes) >= 0 for name in names)


def place_timeout(body_bytes: int, names_group: bool, settings: Settings) -> float | None:
    """Return the `place_timeout` for DataPlane.infer() in seconds, for a body of this size.

    None for a body of at most LARGE_BYTES. Also None for a body that may name another group: which
    one is unknown until the body is read.
    """
    small = body_bytes <= LARGE_BYTES
    return None if small or names_group else settings.timeout_max_ms / 1000


async def refuse_shared_memory(rest: str) -> None:
    """Reject shared memory (400): a client could write to a region while the server reads it."""
    del rest
    raise InvalidTensor(f"{NO_SHARED_MEMORY}; send tensors in the request, raw or as JSON")

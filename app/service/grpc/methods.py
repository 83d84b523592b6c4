"""The gRPC methods: each reads a message and calls the same function as the HTTP route.

They are the protocol's methods, and grpc.health.v1: the health of the server and of each model, for
load balancers and probes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2

from app.contracts.errors import InvalidParameter, InvalidTensor, ModelNotFound, ModelNotReady
from app.service.api.routes import answer_headers
from app.service.api.services import Services
from app.service.api.v2 import metadata, repository
from app.service.grpc.calls import Answer, Call, Calls, Method
from app.service.grpc.messages import (
    SERVICE,
    Messages,
    infer_message,
    read_parameters,
    read_version,
)

INFER, STREAM = "ModelInfer", "ModelStreamInfer"
PATHS: Mapping[str, str] = {
    INFER: "/v2/models/-/infer",
    STREAM: "/v2/models/-/infer",
    "ServerLive": "/v2/health/live",
    "ServerReady": "/v2/health/ready",
    "ModelReady": "/v2/models/-/ready",
    "ServerMetadata": "/v2",
    "ModelMetadata": "/v2/models/-",
    "ModelConfig": "/v2/models/-/config",
    "ModelStatistics": "/v2/models/-/stats",
    "RepositoryIndex": "/v2/repository/index",
    "RepositoryModelLoad": "/v2/repository/models/-/load",
    "RepositoryModelUnload": "/v2/repository/models/-/unload",
}
"""The protocol's methods, and their equivalents over HTTP."""
HEALTH = "grpc.health.v1.Health"
SERVERS = ("", SERVICE, HEALTH)
"""Service names that mean the server itself; other names are models and tasks."""
POLL_SECONDS = 1.0
Status = health_pb2.HealthCheckResponse


def methods(services: Services, messages: Messages) -> list[Method]:
    """Build all methods. STREAM answers each message of its stream like INFER."""
    infer = partial(_infer, services, messages)
    answers = {name: partial(_answer, name, services, messages) for name in PATHS}
    answers |= {INFER: infer, STREAM: infer}
    health: dict[str, Answer] = {"Check": partial(_check, services), "Watch": _parse}
    return [
        *(Method(name=name, path=path, answer=answers[name]) for name, path in PATHS.items()),
        *(
            Method(name=name, path=PATHS["ServerReady"], answer=answer, service=HEALTH)
            for name, answer in health.items()
        ),
    ]


async def _infer(services: Services, messages: Messages, message: bytes, call: Call) -> bytes:
    reply, found = await infer_message(services, messages, message, within=call.within)
    call.metadata |= {name.lower(): text for name, text in answer_headers(found.answer).items()}
    return reply


async def _answer(
    name: str, services: Services, messages: Messages, message: bytes, _call: Call
) -> bytes:
    try:
        request = messages[f"{name}Request"].FromString(message)
    except DecodeError:
        raise InvalidTensor(f"the message is not a {name}Request") from None
    if getattr(request, "repository_name", ""):  # only some messages have this field
        raise InvalidParameter("there is only one repository; it has no name")
    reply = messages[f"{name}Response"]()
    json_format.ParseDict(await _fields(name, services, request), reply)
    return bytes(reply.SerializeToString())


async def _fields(name: str, services: Services, request: Any) -> Mapping[str, Any]:
    """Return the fields of the reply."""
    which = services, getattr(request, "name", ""), read_version(getattr(request, "version", ""))
    match name:
        case "ServerLive":
            return {"live": True}
        case "ServerReady":
            return {"ready": _holds(lambda: metadata.check_server(services))}
        case "ModelReady":
            return {"ready": _holds(lambda: metadata.check_model(*which))}
        case "ServerMetadata":
            return (await metadata.server_metadata(services)).model_dump()
        case "ModelMetadata":
            return metadata.metadata_of(*which).model_dump()
        case "ModelConfig":
            return {"config": metadata.config_of(*which)}
        case "ModelStatistics":
            return metadata.stats_of(*which) if request.name else await metadata.all_stats(services)
        case "RepositoryIndex":
            entries = await repository.listed_versions(services, only_ready=request.ready)
            return {"models": [entry.model_dump() for entry in entries]}
    parameters = read_parameters(request.parameters)
    loads = name == "RepositoryModelLoad"
    change = repository.load_model if loads else repository.unload_model
    await change(services, request.model_name, parameters)
    return {}


def _holds(check: Callable[[], None]) -> bool:
    """Whether the check passes: these methods of the protocol report false instead of an error."""
    try:
        check()
    except (ModelNotReady, ModelNotFound):
        return False
    return True


async def _check(services: Services, message: bytes, _call: Call) -> bytes:
    return _written(_status(services, _service(message)))


async def _parse(message: bytes, _call: Call) -> bytes:
    """Check that the message is a request, and return it. `watched` then sends the statuses."""
    _service(message)
    return message


def watched(services: Services, calls: Calls, method: Method) -> grpc.RpcMethodHandler:
    """Build the handler that sends each new status."""

    async def handle(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        asked = _service(await calls.answer(method, messages, context))
        last: int | None = None
        async with calls.kept_open(context):
            while True:
                # Read before the status, so that the last status sent is NOT_SERVING.
                draining = services.lifecycle.draining
                try:
                    status = _status(services, asked)
                except ModelNotFound:
                    status = Status.SERVICE_UNKNOWN
                if status != last:
                    yield _written(status)
                    last = status
                if draining:
                    return
                await asyncio.sleep(POLL_SECONDS)

    return grpc.stream_stream_rpc_method_handler(handle)


def _service(message: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(message).service)
    except DecodeError:
        raise InvalidTensor("the message is not a HealthCheckRequest") from None


def _status(services: Services, asked: str) -> int:
    """Return the serving status of the server or a model. Raises ModelNotFound."""
    try:
        if asked in SERVERS:
            metadata.check_server(services)
        else:
            metadata.check_model(services, asked)
    except ModelNotReady:
        return int(Status.NOT_SERVING)
    return int(Status.SERVING)


def _written(status: int) -> bytes:
    return bytes(Status(status=status).SerializeToString())

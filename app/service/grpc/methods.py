"""The protocol's methods: each reads a message and calls the same function as the HTTP route."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from app.contracts.errors import InvalidParameter, InvalidTensor, ModelNotFound, ModelNotReady
from app.service.api.routes import answer_headers
from app.service.api.services import Services
from app.service.api.v2 import metadata, repository
from app.service.grpc.calls import Call, Method
from app.service.grpc.messages import Messages, infer_message, read_parameters, read_version

Ask = Callable[[Services, Any], Awaitable[dict[str, Any]]]
"""Returns the reply's fields for a parsed request."""

INFER = "/v2/models/-/infer"


def methods(services: Services, messages: Messages) -> list[Method]:
    """Build all methods whose request is a single message."""
    asked: Mapping[str, tuple[str, Ask]] = {
        "ServerLive": ("/v2/health/live", _live),
        "ServerReady": ("/v2/health/ready", _ready),
        "ModelReady": ("/v2/models/-/ready", _model_ready),
        "ServerMetadata": ("/v2", _server_metadata),
        "ModelMetadata": ("/v2/models/-", _model_metadata),
        "ModelConfig": ("/v2/models/-/config", _model_config),
        "ModelStatistics": ("/v2/models/-/stats", _model_statistics),
        "RepositoryIndex": ("/v2/repository/index", _index),
        "RepositoryModelLoad": ("/v2/repository/models/-/load", _load),
        "RepositoryModelUnload": ("/v2/repository/models/-/unload", _unload),
    }
    return [
        Method(name="ModelInfer", path=INFER, answer=inference(services, messages)),
        *(
            Method(name=name, path=path, answer=_asking(name, ask, services, messages))
            for name, (path, ask) in asked.items()
        ),
    ]


def inference(services: Services, messages: Messages) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def answer(message: bytes, call: Call) -> bytes:
        reply, found = await infer_message(services, messages, message, within=call.within)
        headers = answer_headers(found.answer)
        call.metadata |= {name.lower(): value for name, value in headers.items()}
        return reply

    return answer


def _asking(
    name: str, ask: Ask, services: Services, messages: Messages
) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def answer(message: bytes, call: Call) -> bytes:
        del call
        try:
            request = messages[f"{name}Request"].FromString(message)
        except DecodeError:
            raise InvalidTensor(f"the message is not a {name}Request") from None
        if getattr(request, "repository_name", ""):  # only some messages have this field
            raise InvalidParameter("there is only one repository; it has no name")
        reply = messages[f"{name}Response"]()
        json_format.ParseDict(await ask(services, request), reply)
        return bytes(reply.SerializeToString())

    return answer


async def _live(_services: Services, _request: Any) -> dict[str, Any]:
    return {"live": True}


async def _ready(services: Services, _request: Any) -> dict[str, Any]:
    return {"ready": _holds(lambda: metadata.check_server(services))}


async def _model_ready(services: Services, request: Any) -> dict[str, Any]:
    version = read_version(request.version)
    return {"ready": _holds(lambda: metadata.check_model(services, request.name, version))}


def _holds(check: Callable[[], None]) -> bool:
    """Whether the check passes: these methods of the protocol report false instead of an error."""
    try:
        check()
    except (ModelNotReady, ModelNotFound):
        return False
    return True


async def _server_metadata(services: Services, _request: Any) -> dict[str, Any]:
    return (await metadata.server_metadata(services)).model_dump()


async def _model_metadata(services: Services, request: Any) -> dict[str, Any]:
    version = read_version(request.version)
    return metadata.metadata_of(services, request.name, version).model_dump()


async def _model_config(services: Services, request: Any) -> dict[str, Any]:
    return {"config": metadata.config_of(services, request.name, read_version(request.version))}


async def _model_statistics(services: Services, request: Any) -> dict[str, Any]:
    version = read_version(request.version)
    if not request.name:
        return await metadata.all_stats(services)
    return metadata.stats_of(services, request.name, version)


async def _index(services: Services, request: Any) -> dict[str, Any]:
    entries = await repository.listed_versions(services, only_ready=request.ready)
    return {"models": [entry.model_dump() for entry in entries]}


async def _load(services: Services, request: Any) -> dict[str, Any]:
    await repository.load_model(services, request.model_name, read_parameters(request.parameters))
    return {}


async def _unload(services: Services, request: Any) -> dict[str, Any]:
    await repository.unload_model(services, request.model_name, read_parameters(request.parameters))
    return {}

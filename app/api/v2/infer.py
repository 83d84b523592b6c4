"""POST /v2/models/{model}/infer: raw tensors in, raw tensors out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.offload import beside_the_loop
from app.api.problems import documented
from app.api.replies import server_timing
from app.api.services import ServicesDep
from app.api.v2.tensors import BINARY_HEADER, InferRequest, parse_request, write_response
from app.api.v2.version_routes import add_by_version
from app.contracts.errors import FileTooLarge, InvalidTensor, RunRefused
from app.settings import Settings

PARAMETERS = ("predictor", "priority", "timeout")


@dataclass(frozen=True, slots=True)
class InferOptions:
    """What `parameters` asks for. `timeout` in seconds."""

    predictor: str | None
    priority: int
    timeout: float


def router() -> APIRouter:
    routes = APIRouter(tags=["v2"])
    refusals = documented(400, 404, 500, 503, 504, protocol=True)
    body = {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
    add_by_version(
        routes,
        "/infer",
        infer,
        infer_version,
        operation="Infer",
        methods=["POST"],
        response_class=Response,
        responses=refusals,
        openapi_extra={"requestBody": body},
    )
    return routes


async def infer(model: str, request: Request, services: ServicesDep) -> Response:
    """Run the version that answers when a request names none."""
    return await _infer(request, services, model, None)


async def infer_version(
    model: str, version: int, request: Request, services: ServicesDep
) -> Response:
    """Run one version."""
    return await _infer(request, services, model, version)


async def _infer(
    request: Request, services: ServicesDep, model: str, version: int | None
) -> Response:
    length = _header_length(request.headers.get(BINARY_HEADER))
    body = await request.body()
    cap = services.settings.infer_json_max_bytes
    json_bytes = len(body) if length is None else min(length, len(body))
    if json_bytes > cap:
        raise FileTooLarge(
            f"The JSON part has {json_bytes} bytes, the limit is {cap}; larger tensors can be "
            f"sent raw, with {BINARY_HEADER}.",
            limit=cap,
            received=json_bytes,
        )
    with services.registry.lease(model, version) as served:
        parse = partial(
            parse_request,
            body,
            header_length=length,
            inputs=served.inputs,
            outputs=served.outputs,
        )
        asked = await beside_the_loop(services.operations, parse, size=json_bytes)
        wish = _wish(asked.parameters, services.settings)
        try:
            result = await services.dataplane.infer(
                served,
                asked.inputs,
                group=wish.predictor,
                timeout=wish.timeout,
                priority=wish.priority,
            )
        except RunRefused:
            # The model has passed its self-test, and these tensors were alone in their last run.
            shapes = (f"{name} {list(array.shape)}" for name, array in asked.inputs.items())
            raise InvalidTensor(
                "the model cannot be run on these tensors; each fits by itself, but their shapes "
                f"do not go together or a value is out of range: {', '.join(shapes)}"
            ) from None
    stages = {"queue": result.queue_seconds, "infer": result.infer_seconds}
    headers = {
        "X-Model": f"{result.model}@{result.version}",
        "X-Predictor": result.group,
        "Server-Timing": server_timing(stages),
    }
    return _reply(result.outputs, asked, headers, model=result.model, version=result.version)


def _reply(
    outputs: Mapping[str, Any],
    asked: InferRequest,
    headers: dict[str, str],
    *,
    model: str,
    version: int,
) -> Response:
    content, json_length = write_response(outputs, asked, model=model, version=version)
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


def _wish(parameters: Mapping[str, Any], settings: Settings) -> InferOptions:
    """Read `parameters`; timeout is in microseconds, as the protocol's other servers have it."""
    if unknown := set(parameters) - set(PARAMETERS):
        raise InvalidTensor(
            f"{len(unknown)} unknown parameters; there are {', '.join(PARAMETERS)}, "
            "binary_data_output"
        )
    predictor = parameters.get("predictor")
    if predictor is not None and not isinstance(predictor, str):
        raise InvalidTensor("parameter predictor must be the name of an instance group")
    priority = _whole(parameters, "priority", 0, 1_000)
    limit = settings.timeout_max_ms * 1000
    microseconds = _whole(parameters, "timeout", 0, limit)
    timeout = microseconds / 1e6 if microseconds else settings.timeout_default_ms / 1000
    return InferOptions(predictor, priority, timeout)


def _whole(parameters: Mapping[str, Any], name: str, default: int, limit: int) -> int:
    value = parameters.get(name, default)
    if type(value) is not int or not 0 <= value <= limit:
        raise InvalidTensor(
            f"parameter {name} must be an integer from 0 to {limit}",
            limit=limit,
            received=value if type(value) is int and abs(value) < 2**53 else None,
        )
    return value

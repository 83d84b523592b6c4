"""POST /v2/models/{model}/infer: tensors in, tensors out, for a model or a whole task."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from app.contracts.errors import FileTooLarge, InvalidTensor
from app.service.api.offload import beside_the_loop
from app.service.api.problems import documented
from app.service.api.routing import answer_headers
from app.service.api.services import ServicesDep
from app.service.api.v2.answering import check_size, infer_tensors
from app.service.api.v2.bodies import (
    may_name_group,
    parse_request,
    place_timeout,
    write_reply,
    written_size,
)
from app.service.api.v2.metadata import add_by_version
from app.service.api.v2.schema import RAW, InferReply, described_request
from app.service.api.v2.tensors import BINARY_HEADER
from app.settings.server import Settings


def router(settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["v2"])
    refusals = documented(400, 404, 500, 503, 504, protocol=True)
    # JSON comes first because some client generators read only the first type.
    content = {"application/json": {}, "application/octet-stream": RAW}
    reply = {"model": InferReply, "content": content}
    add_by_version(
        routes,
        "/infer",
        infer,
        infer_version,
        operation="Infer",
        methods=["POST"],
        max_body_size=settings.infer_max_bytes,
        response_class=Response,
        responses={200: reply, **refusals},
        openapi_extra=described_request(),
    )
    return routes


async def infer(model: str, request: Request, services: ServicesDep) -> Response:
    """Run the version that answers requests without a version."""
    return await _infer(request, services, model, None)


async def infer_version(
    model: str, version: int, request: Request, services: ServicesDep
) -> Response:
    """Run one version."""
    return await _infer(request, services, model, version)


async def _infer(
    request: Request, services: ServicesDep, model: str, version: int | None
) -> Response:
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
            f"sent raw, with {BINARY_HEADER}.",
            limit=cap,
            received=json_bytes,
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
    content, json_length = await beside_the_loop(services, write, size=size)
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

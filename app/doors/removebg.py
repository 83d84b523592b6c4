"""`/v1.0/removebg` and `/v1.0/account` as remove.bg's API has them.

Fields, headers and errors: https://www.remove.bg/api and what its clients send: `removebg` 0.04 of
PyPI and `remove.bg` 1.3 of npm. What the fields mean to the task is in `removebg_fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote_plus

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import JSONResponse

from app.api.forms import FORM, media_type, read_form
from app.api.offload import base64_parts, beside_the_loop
from app.api.problems import ErrorForm, Fault
from app.api.replies import answer_headers
from app.api.routing import RoutingDep
from app.api.services import Services, ServicesDep
from app.contracts.errors import InvalidParameter, UnsupportedMediaType
from app.doors.bodies import json_object, refused
from app.doors.door import Door, task_route
from app.doors.removebg_fields import Source, document, read_source, translate
from app.pipelines.segment.accept import read_accept
from app.pipelines.segment.options import MEDIA_TYPES
from app.pipelines.segment.request import SegmentRequest, SegmentResult
from app.pipelines.segment.router import result_headers
from app.pipelines.segment.settings import SegmentSettings
from app.settings import Settings

JSON = "application/json"
URLENCODED = "application/x-www-form-urlencoded"
DETECTED = "other"
"""remove.bg's X-Type for a picture of no kind of its own: this server detects none."""
UNLIMITED_CALLS = 1_000_000
"""Free calls that /v1.0/account names without a quota: clients compare them with their need."""
FIELD_TEXT_BYTES = 1024
QUOTED = {
    b"%2B": b"+",
    b"%2F": b"/",
    b"%3D": b"=",
    b"%0A": b"",
    b"%0D": b"",
    b"%2C": b",",
    b"%3A": b":",
    b"%3B": b";",
}
"""Characters that clients quote in base64 and in a `data:` address before it."""
UNKNOWN_FOREGROUND = {
    "title": "Could not identify foreground in image",
    "code": "unknown_foreground",
    "detail": "The network found no foreground in this picture.",
}


class RemoveBgFault(BaseModel):
    title: str
    code: str
    detail: str


class RemoveBgError(BaseModel):
    """An error as remove.bg has it."""

    errors: list[RemoveBgFault]


def routes(settings: Settings) -> APIRouter:
    binary = {"schema": {"type": "string", "format": "binary"}}
    reply = dict.fromkeys(MEDIA_TYPES.values(), binary)
    router = task_route(
        "/v1.0/removebg",
        remove_background,
        max_bytes=settings.of(SegmentSettings).segment_max_bytes,
        operation="removebgRemove",
        summary="As remove.bg: remove the background of an uploaded picture",
        reply={
            "description": "The picture, or JSON when `Accept` asks for it.",
            "content": reply | {JSON: {"schema": {"type": "object"}}},
        },
        body=document(),
    )
    router.add_api_route(
        "/v1.0/account",
        account,
        route_class_override=APIRoute,
        methods=["GET"],
        operation_id="removebgAccount",
        summary="As remove.bg: what may still be asked for",
    )
    return router


async def remove_background(
    request: Request, services: ServicesDep, routing: RoutingDep
) -> Response:
    """Takes a form, or the same fields as JSON with the picture as base64. `size` is `preview`
    unless told otherwise, as it is there.
    """
    settings = services.settings
    given = await _given(request, services)
    no_type = False

    async def read() -> SegmentRequest:
        nonlocal no_type
        source, fields = await given()
        no_type = fields.get("type_level") == "none"
        return await beside_the_loop(services, partial(translate, source, fields), size=source.size)

    answer = await services.dataplane.run("segment", read, **routing.options(settings))
    result: SegmentResult = answer.value
    if result.box.width == 0:
        return JSONResponse({"errors": [UNKNOWN_FOREGROUND]}, 400, answer_headers(answer))
    headers = result_headers(answer) | {"X-Credits-Charged": "0"}
    if not no_type:
        headers["X-Type"] = DETECTED
    as_json, _ = read_accept(request.headers.get("accept", ""))
    if not as_json:
        return Response(result.image, media_type=MEDIA_TYPES[result.format], headers=headers)
    content = await beside_the_loop(services, partial(_as_json, result), size=len(result.image))
    return Response(content, media_type=JSON, headers=headers)


async def account(services: ServicesDep) -> dict[str, Any]:
    """Nothing is sold here: no credits, and as many free calls as the quota of a minute."""
    calls = services.settings.quota_requests_per_minute or UNLIMITED_CALLS
    credits = {"total": 0, "subscription": 0, "payg": 0, "enterprise": 0}
    return {
        "data": {"attributes": {"credits": credits, "api": {"free_calls": calls, "sizes": "all"}}}
    }


async def _given(request: Request, services: Services) -> Any:
    """Receives the body; returns what reads it when a place in the queue is held: the source of the
    picture and the other fields."""
    kind = media_type(request)
    cap = services.settings.of(SegmentSettings).segment_max_bytes
    most = services.settings.form_max_fields
    if kind == FORM:
        # A field may be a picture in base64; all together are capped as the body is.
        form = await read_form(request, max_files=2, max_fields=most, field_bytes=cap)

        async def from_form() -> tuple[Source, dict[str, str]]:
            return read_source(dict(form.fields), dict(form.files))

        return from_form
    if kind not in (JSON, URLENCODED):
        raise UnsupportedMediaType(
            f"the body must be {FORM}, {URLENCODED} or {JSON}",
            limit=f"{FORM}, {URLENCODED}, {JSON}",
        )
    body = await request.body()
    parse = partial(json_object, body) if kind == JSON else partial(_urlencoded, body, most)

    async def from_body() -> tuple[Source, dict[str, str]]:
        fields = await beside_the_loop(services, parse, size=len(body))
        return read_source(fields, {})

    return from_body


def _urlencoded(body: bytes, most: int) -> dict[str, Any]:
    """The fields of a form in the body. Raises InvalidParameter.

    A picture's base64 is not unquoted like other text: it may be megabytes long, few of its letters
    are quoted, and a plus sign that somebody forgot to quote is no space.
    """
    pairs = body.split(b"&", most + 1)
    if len(pairs) > most + 1:
        raise InvalidParameter(f"the form has more than {most} fields", limit=most)
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        if name == b"image_file_b64":
            for quoted, plain in QUOTED.items():
                value = value.replace(quoted, plain).replace(quoted.lower(), plain)
            if b"%" in value:
                raise refused("image_file_b64", "must be base64, in which nothing else is quoted")
            fields["image_file_b64"] = value
            continue
        if len(pair) > 3 * FIELD_TEXT_BYTES:
            raise InvalidParameter(
                f"a field of the form has more than {FIELD_TEXT_BYTES} bytes",
                limit=FIELD_TEXT_BYTES,
            )
        fields[_text(name)] = _text(value)
    return fields


def _text(quoted: bytes) -> str:
    return unquote_plus(quoted.decode("latin-1"), errors="replace")


def _as_json(result: SegmentResult) -> bytes:
    box = result.box
    places = (
        f',"foreground_top":{box.top},"foreground_left":{box.left}'
        f',"foreground_width":{box.width},"foreground_height":{box.height}}}}}'
    )
    parts = [b'{"data":{"result_b64":"', *base64_parts(result.image), b'"', places.encode()]
    return b"".join(parts)


CODES = {
    "file_missing": "missing_source",
    "image_unreadable": "failed_to_read_image",
    "unsupported_media_type": "invalid_file_type",
    "unauthorized": "auth_failed",
    "overloaded": "rate_limit_exceeded",
    "quota_exceeded": "rate_limit_exceeded",
}
"""Names that remove.bg has for errors of ours; others keep the name they have here."""
FIELDS = (
    "image_url",
    "size",
    "format",
    "roi",
    "crop_margin",
    "scale",
    "position",
    "channels",
    "semitransparency",
    "bg_color",
    "bg_image_url",
)
"""For each of these it has a code of its own."""


def _write(fault: Fault, request_id: str) -> Mapping[str, Any]:
    del request_id
    code = CODES.get(fault.code, fault.code)
    name = fault.detail.partition(" ")[0].removesuffix(":")  # refusals begin with the field's
    if code == "invalid_parameter" and name in FIELDS:
        code = f"invalid_{name}"
    return {"errors": [{"title": fault.title, "code": code, "detail": fault.detail}]}


DOOR = Door(
    name="removebg",
    task="segment",
    routes=routes,
    errors=ErrorForm(
        model=RemoveBgError,
        write=_write,
        statuses={
            401: 403,
            413: 400,
            415: 400,
            422: 400,
            "model_not_found": 400,
            "overloaded": 429,
        },
    ),
    headers=("X-Type", "X-Credits-Charged"),
)

"""POST /segment: the formats of requests and replies; `pipeline` does the work in between."""

import json
import math
import re
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from paddlepool.contracts.errors import InvalidParameter
from paddlepool.contracts.ports import RequestOutput
from paddlepool.engine.dataplane import ready
from paddlepool.service.api.routes import ROUTING, Routing, TaskRoute, output_headers
from paddlepool.service.api.services import ServicesDep, base64_parts, run_off_loop
from paddlepool.service.api.uploads import FORM, RAW_CONTENT, read_upload
from paddlepool.settings.server import Settings
from paddlepool.tasks.options import query_parameters
from paddlepool.tasks.segment.request import (
    FORMATS,
    MEDIA_TYPES,
    OPTIONS,
    ForegroundBox,
    SegmentOptions,
    SegmentRequest,
    SegmentResult,
    SegmentSettings,
)

EXAMPLE = {
    "width": 512,
    "height": 512,
    "foreground_box": {"top": 2, "left": 25, "width": 429, "height": 510},
    "confidence": 0.97,
    "format": "png",
    "image": "iVBORw0KGgo…",
    "timings": {"decode": 3.1, "preprocess": 2.7, "infer": 93.0, "postprocess": 9.5, "encode": 8.8},
    "model": "u2netp@2",
    "instance_group": "onednn",
    "predictor": "onednn",
}
_FORMATS = {kind: name for name, kind in MEDIA_TYPES.items()}
_BINARY = {"type": "string", "format": "binary"}
_JSON = "application/json"
MAX_RANGES = 32
ESCAPES = " (in a query, % is written %25 and # is written %23)"
"""Added to an error about a value of the query that may contain % or #."""


class SegmentReply(BaseModel):
    """The reply to `Accept: application/json`."""

    width: int = Field(description="Width of the result in pixels.")
    height: int = Field(description="Height of the result in pixels.")
    foreground_box: ForegroundBox
    confidence: float = Field(
        ge=0, le=1, description="Mean of |2p - 1| over the mask: 1 where the network is sure."
    )
    format: str = Field(description="The encoding of `image`: png, webp or jpg.")
    image: str = Field(description="The result, base64.")
    timings: dict[str, float] = Field(description="Milliseconds by stage.")
    model: str = Field(description="`name@version`")
    instance_group: str = Field(description="The instance group that answered.")
    predictor: str = Field(description="Alias of `instance_group`.")


def build_router(settings: Settings) -> APIRouter:
    parameters = query_parameters(SegmentOptions, Routing)
    router = APIRouter(tags=["segment"], route_class=TaskRoute)
    router.add_api_route(
        "/segment",
        segment_image,
        methods=["POST"],
        max_body_size=settings.of(SegmentSettings).segment_max_bytes,
        operation_id="segmentImage",
        summary="Cut the foreground out of a picture",
        response_class=Response,
        responses={
            200: {
                "description": "The picture, or JSON when `Accept` asks for it.",
                "model": SegmentReply,
                "content": {
                    **{kind: {"schema": _BINARY} for kind in MEDIA_TYPES.values()},
                    _JSON: {"example": EXAMPLE},
                },
            }
        },
        openapi_extra={"parameters": parameters, "requestBody": _request_body()},
    )
    return router


async def segment_image(request: Request, services: ServicesDep) -> Response:
    """Takes a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF, as a form's file or as the body.

    Also takes a HEIC if its extra is installed. Uses only the first of several frames or pages.

    Every parameter may stand in the query or in the form. A background picture is a second file.
    """
    settings = services.settings
    body, background, parameters = await read_upload(
        request,
        known=(*OPTIONS, *ROUTING),
        max_fields=settings.form_max_fields,
        second=("bg_image", "bg_image_file"),
    )
    as_json, preferred = read_accept(request.headers.get("accept", ""))
    options: dict[str, Any] = {name: parameters[name] for name in OPTIONS if name in parameters}
    if preferred in FORMATS.get(options.get("output", "cutout"), ()):
        options.setdefault("format", preferred)
    try:
        payload = SegmentRequest(body=body, background=background, **options)
    except InvalidParameter as error:
        if error.parameter in request.query_params and SegmentRequest.may_lack_escapes(error):
            error.message += ESCAPES
        raise
    routing = Routing.of_parameters(parameters)
    output = await services.dataplane.run("segment", ready(payload), **routing.options(settings))
    result: SegmentResult = output.value
    headers = output_headers(output) | result_headers(result)
    if not as_json:
        headers["Content-Disposition"] = f'inline; filename="{result.output}.{result.format}"'
        return Response(result.image, media_type=MEDIA_TYPES[result.format], headers=headers)
    content = await run_off_loop(services, partial(_document, output), size=len(result.image))
    return Response(content, media_type=_JSON, headers=headers)


def _document(output: RequestOutput) -> bytes:
    """Build the JSON reply; `image` bypasses the JSON encoder, because base64 needs no escapes."""
    result: SegmentResult = output.value
    reply = {
        "width": result.width,
        "height": result.height,
        "foreground_box": asdict(result.box),
        "confidence": round(result.confidence, 6),
        "format": result.format,
        "timings": {stage: round(seconds * 1000, 3) for stage, seconds in output.stages.items()},
        "model": f"{output.model}@{output.version}",
        "instance_group": output.group,
        "predictor": output.group,
    }
    head = json.dumps(reply, separators=(",", ":")).removesuffix("}").encode()
    return b"".join([head, b',"image":"', *base64_parts(result.image), b'"}'])


def result_headers(result: SegmentResult) -> dict[str, str]:
    box = {f"X-Foreground-{side.title()}": str(at) for side, at in asdict(result.box).items()}
    size = {"X-Width": str(result.width), "X-Height": str(result.height)}
    return size | box | {"Vary": "Accept"}


def _request_body() -> dict[str, Any]:
    """Return the OpenAPI description of the body: its files, not the parameters.

    Parameters are already declared for the query. With a second declaration here, API pages would
    offer each of them twice.
    """
    pictures = {
        "file": "The picture; or `image_file`.",
        "bg_image": "For composite: a second picture, the background; or `bg_image_file`.",
    }
    form = {
        "type": "object",
        "required": ["file"],
        "properties": {name: _BINARY | {"description": text} for name, text in pictures.items()},
        # Lets a generated client still send the parameters as fields.
        "additionalProperties": {"type": "string"},
    }
    return {
        "required": True,
        "description": "The picture, in a form or as the body, also with a type of `image/*`. Each "
        "parameter may be a field of the form instead.",
        "content": {FORM: {"schema": form}, **RAW_CONTENT},
    }


def read_accept(header: str) -> tuple[bool, str | None]:
    """Return whether an Accept header prefers JSON, and its preferred picture format, if any.

    The format is None if the header has none, or prefers `*/*` or `image/*`. Among equal q-values,
    JSON comes first, then the picture formats in the header's order. Types that the server does not
    return, and those after the first MAX_RANGES, are ignored.
    """
    preferred = None
    json_quality = format_quality = open_quality = 0.0
    for part in header.lower().split(",")[:MAX_RANGES]:
        kind, _, parameters = part.partition(";")
        kind, quality = kind.strip(), _quality(parameters)
        if kind in _FORMATS and quality > format_quality:
            preferred, format_quality = _FORMATS[kind], quality
        elif kind == _JSON:
            json_quality = max(json_quality, quality)
        elif kind in ("*/*", "image/*"):
            open_quality = max(open_quality, quality)
    as_json = json_quality > 0.0 and json_quality >= max(format_quality, open_quality)
    return as_json, preferred if format_quality >= open_quality else None


def _quality(parameters: str) -> float:
    match = re.search(r"(?:^|;)\s*q\s*=([^;]*)", parameters)
    try:
        quality = float(match[1]) if match else 1.0
    except ValueError:
        return 0.0
    return quality if math.isfinite(quality) else 0.0

"""POST /ocr: the formats of requests and replies; `pipeline` does the work in between."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from paddlepool.contracts.errors import FileMissing, InvalidParameter, TooManyInputs
from paddlepool.contracts.ports import RequestOutput
from paddlepool.engine.dataplane import ready
from paddlepool.service.api.errors import ANY_STATUSES, PADDLEX, TASK_STATUSES, documented
from paddlepool.service.api.routes import (
    ROUTING,
    UNDECLARED_TYPES,
    Routing,
    TaskRoute,
    output_headers,
)
from paddlepool.service.api.services import Services, ServicesDep, run_off_loop
from paddlepool.service.api.uploads import (
    FORM,
    RAW_CONTENT,
    json_object,
    json_parameters,
    media_type,
    picture_in_base64,
    read_pictures,
    refused,
)
from paddlepool.settings.server import Settings
from paddlepool.tasks.ocr.paddlex import document_of, options_of
from paddlepool.tasks.ocr.request import (
    MOST_PICTURES,
    OPTIONS,
    OcrOptions,
    OcrRequest,
    OcrResult,
    max_bytes,
)
from paddlepool.tasks.options import query_parameters

_JSON, _TEXT, _PNG = "application/json", "text/plain", "image/png"
MEDIA_TYPES = {"json": _JSON, "text": f"{_TEXT}; charset=utf-8", "png": _PNG}
PARAMETERS = (*OPTIONS, *ROUTING)
PICTURES = ("image", "images")
"""The members of a request in JSON that are no parameters."""
LINE_BYTES = 150
"""Bytes of a line of text in a JSON reply, roughly."""
_BINARY = {"type": "string", "format": "binary"}

EXAMPLE = {
    "pages": [
        {
            "width": 463,
            "height": 1013,
            "angle": 0,
            "lines": [
                {
                    "text": "TOTAL RM 9.00",
                    "score": 0.9821,
                    "box": [[31, 640], [301, 640], [301, 668], [31, 668]],
                }
            ],
        }
    ],
    "model": "ocr",
    "version": 1,
}


class LineReply(BaseModel):
    text: str
    score: float = Field(ge=0, le=1)
    box: list[list[int]] = Field(
        description="Four corners [x, y] clockwise from the top left, in pixels of the page."
    )


class PageReply(BaseModel):
    """The lines of a page in reading order."""

    width: int = Field(description="Width of the upright picture in pixels.")
    height: int = Field(description="Height of the upright picture in pixels.")
    angle: int = Field(description="Degrees by which it was turned anticlockwise.")
    lines: list[LineReply]


class OcrReply(BaseModel):
    """The reply with `format=json`."""

    pages: list[PageReply] = Field(
        description="A page for each picture, and for each page of a TIFF, in order."
    )
    model: str
    version: int


class PaddleXReply(BaseModel):
    """The reply to a request in the form of PaddleX's pipeline OCR."""

    logId: str  # noqa: N815
    errorCode: int = Field(description="0")  # noqa: N815
    errorMsg: str  # noqa: N815
    result: dict[str, Any] = Field(description="`ocrResults` and `dataInfo`, as PaddleX's.")


def build_router(settings: Settings) -> APIRouter:
    router = APIRouter(tags=["ocr"], route_class=TaskRoute)
    router.add_api_route(
        "/ocr",
        read_text,
        methods=["POST"],
        max_body_size=max_bytes(settings),
        operation_id="readText",
        summary="Read the text in pictures",
        response_class=Response,
        responses={
            200: {
                "description": "The lines of each picture; in PaddleX's form if the request has "
                "its member `file`.",
                "model": OcrReply | PaddleXReply,
                "content": {
                    _JSON: {"example": EXAMPLE},
                    _TEXT: {"schema": {"type": "string"}},
                    _PNG: {"schema": _BINARY},
                },
            },
            **_errors(),
        },
        openapi_extra={
            "parameters": query_parameters(OcrOptions, Routing),
            "requestBody": _request_body(),
        },
    )
    return router


def _errors() -> dict[int | str, dict[str, Any]]:
    """Describe errors in both forms."""
    own, others = (documented(*ANY_STATUSES, *TASK_STATUSES, form=form) for form in (None, PADDLEX))
    return {
        status: {**error, "content": error["content"] | others[status]["content"]}
        for status, error in own.items()
    }


async def read_text(request: Request, services: ServicesDep) -> Response:
    """Takes pictures as files of a form, as the body, or in JSON.

    JSON has `image` or `images` in base64. With PaddleX's member `file`, the request and its reply
    are those of PaddleX's pipeline OCR, and only the first page of a TIFF is read. Otherwise, each
    page of a TIFF is a page of the reply.
    """
    kind = media_type(request)
    may_be_json = kind == _JSON or kind in UNDECLARED_TYPES
    body = await request.body() if may_be_json else b""
    if kind != _JSON and not body.startswith(b"{"):
        pictures, parameters = await read_pictures(
            request,
            known=PARAMETERS,
            max_fields=services.settings.form_max_fields,
            max_files=MOST_PICTURES,
        )
        payload = OcrRequest(pictures=tuple(pictures), **_options(parameters))
        output = await _run(services, ready(payload), parameters)
        return await _reply(services, output, payload.format)
    document = await run_off_loop(services, partial(json_object, body), size=len(body))
    if "file" in document:
        request.state.errors = PADDLEX
        return await _as_paddlex(request, services, document, len(body))
    parameters = json_parameters(request, document, known=PARAMETERS, content=PICTURES)
    options = OcrOptions(**_options(parameters))

    async def read() -> OcrRequest:
        pictures = await run_off_loop(services, partial(_pictures, document), size=len(body))
        return OcrRequest(pictures=pictures, **_options(parameters))

    return await _reply(services, await _run(services, read, parameters), options.format)


async def _as_paddlex(
    request: Request, services: Services, document: Mapping[str, Any], size: int
) -> Response:
    options = options_of(document)

    async def read() -> OcrRequest:
        decode = partial(picture_in_base64, document["file"], "file")
        picture = await run_off_loop(services, decode, size=size)
        if picture.startswith(b"%PDF"):
            raise refused("file", "PDF files are not supported; send each page as a picture")
        return OcrRequest(pictures=(picture,), first_page=True, **options)

    query = request.query_params
    output = await _run(services, read, {name: query[name] for name in ROUTING if name in query})
    min_score = options.get("min_score", 0.0)
    reply = document_of(output.value, request.state.request_id, document, min_score=min_score)
    return Response(orjson.dumps(reply), media_type=_JSON, headers=output_headers(output))


async def _run(
    services: Services,
    read: Callable[[], Awaitable[OcrRequest]],
    parameters: Mapping[str, Any],
) -> RequestOutput:
    options = Routing.of_parameters(parameters).options(services.settings)
    return await services.dataplane.run("ocr", read, **options)


def _options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: parameters[name] for name in OPTIONS if name in parameters}


def _pictures(document: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Decode the base64 of the pictures in a JSON object, its `image` or its `images`.

    Raises FileMissing if it has neither or both, or for an empty picture, InvalidParameter for a
    wrong one, and TooManyInputs above MOST_PICTURES.
    """
    if ("image" in document) == ("images" in document):
        raise FileMissing("the body needs either image, a picture in base64, or images, a list")
    if "image" in document:
        return (picture_in_base64(document["image"], "image"),)
    images = document["images"]
    if not isinstance(images, list) or not images:
        raise InvalidParameter("images must be a list of pictures in base64", parameter="images")
    if len(images) > MOST_PICTURES:
        raise TooManyInputs(
            f"images has {len(images)} pictures, the limit is {MOST_PICTURES}",
            limit=MOST_PICTURES,
            received=len(images),
        )
    return tuple(
        picture_in_base64(image, f"picture {number} of images")
        for number, image in enumerate(images, 1)
    )


async def _reply(services: Services, output: RequestOutput, form: str) -> Response:
    result: OcrResult = output.value
    if form == "png":
        content = result.image or b""
    elif form == "text":
        content = result.text.encode()
    else:
        lines = sum(len(page.lines) for page in result.pages)
        write = partial(_document, output)
        content = await run_off_loop(services, write, size=lines * LINE_BYTES)
    return Response(content, media_type=MEDIA_TYPES[form], headers=output_headers(output))


def _document(output: RequestOutput) -> bytes:
    pages = [
        {
            "width": page.width,
            "height": page.height,
            "angle": page.angle,
            "lines": [
                {"text": line.text, "score": round(line.score, 6), "box": line.box}
                for line in page.lines
            ],
        }
        for page in output.value.pages
    ]
    return orjson.dumps({"pages": pages, "model": output.model, "version": output.version})


def _request_body() -> dict[str, Any]:
    files = {"type": "array", "items": _BINARY, "maxItems": MOST_PICTURES}
    form = {
        "type": "object",
        "required": ["file"],
        "properties": {"file": files | {"description": "The pictures."}},
        "additionalProperties": {"type": "string"},
    }
    text = {"type": "string", "description": "A picture in base64; a URL is rejected."}
    document = {
        "type": "object",
        "properties": {
            "image": text,
            "images": {"type": "array", "items": text, "maxItems": MOST_PICTURES},
            "file": text | {"description": "PaddleX's member for the picture, base64."},
            "fileType": {"type": ["integer", "null"], "description": "PaddleX's: 1, a picture."},
        },
        "additionalProperties": True,
    }
    return {
        "required": True,
        "description": "Pictures in a form, one as the body, also with a type of `image/*`, or "
        "JSON. Each parameter may be a field of the form or a member of JSON instead.",
        "content": {FORM: {"schema": form}, _JSON: {"schema": document}, **RAW_CONTENT},
    }

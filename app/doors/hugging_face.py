"""`/hf/sentiment`, `/hf/segment` and `/hf`: the API of Hugging Face's inference clients.

The clients are recognised by their User-Agent, so they may also use the address of `/sentiment`, of
`/segment` or of the server. Requests and replies follow `huggingface_hub/inference/_client.py` and
`_providers/hf_inference.py` of huggingface_hub 2.4. That client reads a flat list of labels as one
label, so a reply about texts is a list of lists. It sends pictures without a Content-Type.
"""

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from app.contracts.errors import FileMissing, FileTooLarge, UnsupportedMediaType
from app.doors.door import EXAMPLE, Door, picture_in_base64, refused, task_route
from app.service.api.problems import PROTOCOL, ErrorForm
from app.service.api.routes import RoutingDep, answer_headers, read_body
from app.service.api.services import ServicesDep, base64_parts, run_off_loop
from app.service.api.uploads import RAW_CONTENT, RAW_TYPES, json_object, media_type
from app.settings.server import Settings
from app.tasks.segment.request import SegmentRequest, SegmentResult, SegmentSettings, read_options
from app.tasks.sentiment.router import Text, Texts, classify
from app.tasks.sentiment.texts import SentimentSettings

AGENTS = (b"hf_hub/", b"@huggingface/")
"""Parts of the User-Agent of the Python client and of the JavaScript client."""
LABEL = "foreground"
JSON = "application/json"
PICTURE = re.compile(rb'"inputs"\s*:\s*"(?:data:image|\\?/9j\\?/|iVBORw0KGgo|UklGR|R0lGOD|Qk[0-3])')
"""Matches JSON that contains a JPEG, PNG, WebP, GIF or BMP in base64."""
EXAMPLE_OF_TEXTS: JsonDict = {"inputs": "今天太开心了", "parameters": {"top_k": 2}}
WITHOUT_EFFECT = ("truncation", "padding", "batch_size")
"""Text parameters that are accepted but do not change the labels."""


class TextParameters(BaseModel):
    """Null counts as absent; other parameters are rejected."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    top_k: int | None = Field(None, ge=1, description="At most this many labels, best first.")
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = Field(
        None, description="Rejected, unless `softmax`."
    )


class TextsRequest(BaseModel):
    """A text or a list of texts. `options` has no effect; other members are rejected."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="allow", json_schema_extra={"example": EXAMPLE_OF_TEXTS}
    )

    inputs: Text | Texts
    parameters: TextParameters | None = None


class HubLabel(BaseModel):
    label: str
    score: float = Field(ge=0, le=1)


class Segment(BaseModel):
    """The foreground, the only segment of a reply."""

    label: str
    score: float = Field(ge=0, le=1, description="Confidence of the network over the whole mask.")
    mask: str = Field(description="A greyscale PNG of the picture's size, in base64.")


class HubError(BaseModel):
    """An error in the form that the hub's client reads."""

    error: str


def routes_of_both(settings: Settings) -> APIRouter:
    pictures = isinstance(settings, SegmentSettings)  # else that task is not served
    return task_route(
        "/hf",
        answer,
        max_bytes=settings.of(SegmentSettings).segment_max_bytes
        if pictures
        else settings.of(SentimentSettings).sentiment_max_bytes,
        operation="huggingFace",
        summary="As Hugging Face: text classification or image segmentation",
        reply={
            "model": list[Segment] | list[list[HubLabel]],
            "description": "The answer of `/hf/sentiment` to JSON with texts, or of `/hf/segment`"
            " to a picture, which may be base64 in JSON. `/` answers the same to clients whose"
            " User-Agent contains `hf_hub/` or `@huggingface/`.",
        },
        body=_request_body(JSON_OF_EITHER),
    )


def text_routes(settings: Settings) -> APIRouter:
    return task_route(
        "/hf/sentiment",
        classify_texts,
        max_bytes=settings.of(SentimentSettings).sentiment_max_bytes,
        operation="huggingFaceTextClassification",
        summary="As Hugging Face: text classification",
        reply={
            "model": list[list[HubLabel]],
            "description": "A list of lists, even for one text. `/sentiment` answers the same to"
            " clients whose User-Agent contains `hf_hub/` or `@huggingface/`.",
        },
    )


def picture_routes(settings: Settings) -> APIRouter:
    return task_route(
        "/hf/segment",
        segment_picture,
        max_bytes=settings.of(SegmentSettings).segment_max_bytes,
        operation="huggingFaceImageSegmentation",
        summary="As Hugging Face: image segmentation",
        reply={
            "model": list[Segment],
            "description": "The foreground's mask. `/segment` answers the same to clients whose"
            " User-Agent contains `hf_hub/` or `@huggingface/`.",
        },
        body=_request_body(JSON_OF_PICTURE),
    )


async def answer(request: Request, services: ServicesDep, routing: RoutingDep) -> Response:
    """Accepts texts or a picture."""
    content = await request.body()
    if media_type(request) != JSON or PICTURE.search(content):
        return await segment_picture(request, services, routing)
    limit = services.settings.of(SentimentSettings).sentiment_max_bytes
    if len(content) > limit:
        raise FileTooLarge(f"The texts have {len(content)} bytes, the limit is {limit}.")
    faults: list[Any] = []
    body = read_body(TextsRequest, content, JSON, faults)
    if body is None:
        raise RequestValidationError(faults)
    return await classify_texts(body, services, routing)


async def classify_texts(
    body: TextsRequest, services: ServicesDep, routing: RoutingDep
) -> Response:
    """Classifies one text or several."""
    asked = body.parameters or TextParameters()
    _refuse_unknown(body.model_extra or {}, ("options",), of="")
    _refuse_unknown(asked.model_extra or {}, WITHOUT_EFFECT)
    if asked.function_to_apply not in (None, "softmax"):
        raise refused("parameters.function_to_apply", "only softmax is supported")
    answer = await classify(
        services, [body.inputs] if isinstance(body.inputs, str) else body.inputs, routing
    )
    replies = [
        [
            {"label": label, "score": round(score, 7)}
            for label, _, score in result.scores[: asked.top_k]
        ]
        for result in answer.value
    ]
    return Response(orjson.dumps(replies), media_type=JSON, headers=answer_headers(answer))


async def segment_picture(request: Request, services: ServicesDep, routing: RoutingDep) -> Response:
    """Accepts a picture as the body, of any type or none, or as base64 in JSON with parameters.

    A mask is soft unless `mask_threshold` is given.
    """
    kind = media_type(request)
    if kind not in ("", JSON) and not kind.startswith(RAW_TYPES):
        raise UnsupportedMediaType(
            "the body must be a picture, or JSON with the picture as base64 in inputs"
        )
    body = await request.body()
    if not body:
        raise FileMissing("the request has no picture: send it as the body")
    least = 0.0

    async def read() -> SegmentRequest:
        nonlocal least
        parse = partial(translate, body)
        payload, least = await run_off_loop(services, parse, size=len(body))
        return payload

    answer = await services.dataplane.run(
        "segment",
        read if kind == JSON else _plain(body, {}),
        **routing.options(services.settings),
    )
    result: SegmentResult = answer.value
    content = b"[]"
    if result.confidence >= least:
        write = partial(_segments, result)
        content = await run_off_loop(services, write, size=len(result.image))
    return Response(content, media_type=JSON, headers=answer_headers(answer))


def translate(body: bytes) -> tuple[SegmentRequest, float]:
    """Return the request and the minimum score of a segment.

    Raises FileMissing and InvalidParameter.
    """
    document = json_object(body)
    _refuse_unknown(document, ("inputs", "parameters", "options"), of="")
    asked = document.get("parameters")
    if asked is None:
        asked = {}
    if not isinstance(asked, dict):
        raise refused("parameters", "must be an object")
    _refuse_unknown(asked, PICTURE_PARAMETERS)
    if asked.get("subtask") not in (None, "semantic"):
        raise refused("parameters.subtask", "only semantic is supported")
    _fraction(asked, "overlap_mask_area_threshold")  # no effect: one segment overlaps nothing
    threshold = _fraction(asked, "mask_threshold")
    options = {} if threshold is None else {"threshold": str(threshold)}
    picture = picture_in_base64(document.get("inputs"), "inputs")
    return _plain(picture, options), _fraction(asked, "threshold") or 0.0


def _refuse_unknown(
    asked: Mapping[str, Any], known: Collection[str], *, of: str = "parameters."
) -> None:
    """Raise InvalidParameter for unknown members, such as another task's candidate_labels."""
    for name, value in asked.items():
        if name not in known and value is not None:
            raise refused(f"{of}{name[:64]}", "not supported for this task; leave it out")


def _plain(picture: bytes, options: Mapping[str, str]) -> SegmentRequest:
    return read_options(picture, {"output": "mask", "format": "png", **options})


def _fraction(asked: Mapping[str, Any], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise refused(f"parameters.{name}", "must be a number from 0 to 1")
    return float(value)


def _segments(result: SegmentResult) -> bytes:
    head = f'[{{"label":"{LABEL}","score":{result.confidence:.6f},"mask":"'
    return b"".join([head.encode(), *base64_parts(result.image), b'"}]'])


_FRACTION = {"type": "number", "minimum": 0, "maximum": 1}
PICTURE_PARAMETERS: dict[str, Any] = {
    "mask_threshold": _FRACTION | {"description": "Makes the mask black and white."},
    "threshold": _FRACTION | {"description": "Omits a segment with a lower score."},
    "overlap_mask_area_threshold": _FRACTION | {"description": "Has no effect."},
    "subtask": {"enum": ["semantic"]},
}
JSON_OF_PICTURE = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "inputs": {"type": "string", "description": "The picture, base64."},
        "parameters": {"type": "object", "properties": PICTURE_PARAMETERS},
    },
}
_TEXT = {"type": "string", "minLength": 1}
JSON_OF_EITHER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "inputs": {
            "oneOf": [_TEXT, {"type": "array", "items": _TEXT}],
            "description": "A text, a list of texts, or a picture, base64.",
        },
        "parameters": {"type": "object"},
    },
}


def _request_body(schema: Mapping[str, Any]) -> dict[str, Any]:
    content = {"schema": schema, "example": {"inputs": EXAMPLE}}
    return {"required": True, "content": RAW_CONTENT | {JSON: content}}


_door = partial(
    Door,
    name="huggingface",
    errors=ErrorForm(model=HubError, write=PROTOCOL.write),
    agents=AGENTS,
)

BOTH = _door(task="sentiment", routes=routes_of_both, paths={"/": "/hf"})
TEXTS = _door(task="sentiment", routes=text_routes, paths={"/sentiment": "/hf/sentiment"})
PICTURES = _door(task="segment", routes=picture_routes, paths={"/segment": "/hf/segment"})

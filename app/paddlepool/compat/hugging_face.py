"""`/hf/sentiment`, `/hf/segment` and `/hf`: the API of Hugging Face's inference clients.

The clients are recognised by their User-Agent, so they may also use the address of `/sentiment`, of
`/segment` or of the server. Requests and replies follow `huggingface_hub/inference/_client.py` and
`_providers/hf_inference.py` of huggingface_hub 2.4. That client reads a flat list of labels as one
label, so a reply about texts is a list of lists. It sends pictures without a Content-Type.
"""

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from paddlepool.compat import api
from paddlepool.compat.api import JSON, CompatibleApi, refused, run_segment
from paddlepool.contracts.errors import FileMissing, FileTooLarge, UnsupportedMediaType
from paddlepool.service.api.errors import PROTOCOL, ErrorForm
from paddlepool.service.api.routes import RoutingDep, output_headers, read_body
from paddlepool.service.api.services import ServicesDep, base64_parts, run_off_loop
from paddlepool.service.api.uploads import RAW_CONTENT, RAW_TYPES, json_object, media_type
from paddlepool.tasks.options import Options, schemas
from paddlepool.tasks.segment.request import SegmentRequest, SegmentResult
from paddlepool.tasks.sentiment.pipeline import TextRequest
from paddlepool.tasks.sentiment.router import Text, Texts, classify

AGENTS = (b"hf_hub/", b"@huggingface/")
"""Parts of the User-Agent of the Python client and of the JavaScript client."""
LABEL = "foreground"
PICTURE = re.compile(rb'"inputs"\s*:\s*"(?:data:image|\\?/9j\\?/|iVBORw0KGgo|UklGR|R0lGOD|Qk[0-3])')
"""Matches JSON that contains a JPEG, PNG, WebP, GIF or BMP in base64."""
EXAMPLE_OF_TEXTS: JsonDict = {"inputs": "今天太开心了", "parameters": {"top_k": 2}}
Fraction = Annotated[float, Field(ge=0, le=1)]
WITHOUT_EFFECT = ("truncation", "padding", "batch_size")
"""Text parameters that are accepted but do not change the labels."""


class TextParameters(BaseModel):
    """Parameters of text classification. `truncation`, `padding` and `batch_size` have no effect;
    unknown ones are rejected, unless null."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    top_k: int | None = Field(None, ge=1, description="At most this many labels, best first.")
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = Field(
        None, description="Rejected, unless `softmax`."
    )


class TextsRequest(BaseModel):
    """A text or a list of texts. `options` has no effect; unknown members must be null."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="allow", json_schema_extra={"example": EXAMPLE_OF_TEXTS}
    )

    inputs: Text | Texts
    parameters: TextParameters | None = None


class HubLabel(BaseModel):
    label: str
    score: float = Field(ge=0, le=1)


class Segment(BaseModel):
    """The foreground. A reply has this segment, or none if its score is below `threshold`."""

    label: str
    score: float = Field(ge=0, le=1, description="Confidence of the network over the whole mask.")
    mask: str = Field(description="A greyscale PNG of the picture's size, in base64.")


class HubError(BaseModel):
    """An error in the form that Hugging Face's clients read."""

    error: str


async def classify_or_segment(
    request: Request, services: ServicesDep, routing: RoutingDep
) -> Response:
    """Accepts texts or a picture."""
    content = await request.body()
    if media_type(request) != JSON or PICTURE.search(content):
        return await segment_picture(request, services, routing)
    limit = api.text_bytes(services.settings)
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
    parameters = body.parameters or TextParameters()
    _refuse_unknown(body.model_extra or {}, ("options",), of="")
    _refuse_unknown(parameters.model_extra or {}, WITHOUT_EFFECT)
    if parameters.function_to_apply not in (None, "softmax"):
        raise refused("parameters.function_to_apply", "only softmax is supported")
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    output = await classify(services, TextRequest(texts, parameters.top_k), routing)
    replies = [
        [{"label": name, "score": round(score, 7)} for name, _, score in result.scores]
        for result in output.value
    ]
    return Response(orjson.dumps(replies), media_type=JSON, headers=output_headers(output))


async def segment_picture(request: Request, services: ServicesDep, routing: RoutingDep) -> Response:
    """Accepts a picture as the body, of type `image/*`, `application/octet-stream` or none, or as
    base64 in JSON with parameters.

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
    parse = partial(translate, body) if kind == JSON else lambda: (_mask(body), 0.0)
    size = len(body) if kind == JSON else 0
    result, headers, least = await run_segment(services, routing, parse, size)
    content = b"[]"
    if result.confidence >= least:
        write = partial(_segments, result)
        content = await run_off_loop(services, write, size=len(result.image))
    return Response(content, media_type=JSON, headers=headers)


class PictureParameters(Options):
    """Parameters of image segmentation. Null counts as absent; other parameters are rejected."""

    mask_threshold: Fraction | None = Field(None, description="Makes the mask black and white.")
    threshold: Fraction | None = Field(None, description="Omits a segment with a lower score.")
    overlap_mask_area_threshold: Fraction | None = Field(None, description="Has no effect.")
    subtask: (
        Annotated[Literal["semantic"], WithJsonSchema({"type": "string", "enum": ["semantic"]})]
        | None
    ) = None


def translate(body: bytes) -> tuple[SegmentRequest, float]:
    """Return the task's request, and the lowest score with which a segment is in the reply.

    That score is 0 if the body has no `threshold`. Raises InputError.
    """
    document = json_object(body)
    _refuse_unknown(document, ("inputs", "parameters", "options"), of="")
    parameters = {} if document.get("parameters") is None else document["parameters"]
    if not isinstance(parameters, dict):
        raise refused("parameters", "must be an object")
    _refuse_unknown(parameters, PictureParameters.model_fields)
    known = {name: value for name, value in parameters.items() if value is not None}
    read = PictureParameters.model_validate(known)
    picture = api.picture_in_base64(document.get("inputs"), "inputs")
    return _mask(picture, read.mask_threshold), read.threshold or 0.0


def _refuse_unknown(
    members: Mapping[str, Any], known: Collection[str], *, of: str = "parameters."
) -> None:
    """Raise InvalidParameter for a member neither in `known` nor null; `of` precedes its name."""
    for name, value in members.items():
        if name not in known and value is not None:
            raise refused(f"{of}{name[:64]}", "not supported for this task; leave it out")


def _mask(picture: bytes, threshold: float | None = None) -> SegmentRequest:
    return SegmentRequest(body=picture, output="mask", threshold=threshold)


def _segments(result: SegmentResult) -> bytes:
    head = f'[{{"label":"{LABEL}","score":{result.confidence:.6f},"mask":"'
    return b"".join([head.encode(), *base64_parts(result.image), b'"}]'])


PICTURE_INPUTS = {"type": "string", "description": "The picture, base64."}
_TEXT = {"type": "string", "minLength": 1}
INPUTS = {
    "oneOf": [_TEXT, {"type": "array", "items": _TEXT}],
    "description": "A text, a list of texts, or a picture, base64.",
}


def _body(inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = {"inputs": inputs, "parameters": {"type": "object", **parameters}}
    schema = {"type": "object", "required": ["inputs"], "properties": properties}
    return RAW_CONTENT | {JSON: {"schema": schema, "example": {"inputs": api.EXAMPLE}}}


_api = partial(
    CompatibleApi,
    name="huggingface",
    errors=ErrorForm(model=HubError, write=PROTOCOL.write),
    agents=AGENTS,
)
TEXTS = _api(
    task="sentiment",
    path="/hf/sentiment",
    endpoint=classify_texts,
    max_bytes=api.text_bytes,
    operation="huggingFaceTextClassification",
    summary="As Hugging Face: text classification",
    reply={
        "model": list[list[HubLabel]],
        "description": "A list of lists, even for one text. `/sentiment` answers the same to"
        " clients whose User-Agent contains `hf_hub/` or `@huggingface/`.",
    },
    paths={"/sentiment": "/hf/sentiment"},
)
PICTURES = _api(
    task="segment",
    path="/hf/segment",
    endpoint=segment_picture,
    operation="huggingFaceImageSegmentation",
    summary="As Hugging Face: image segmentation",
    reply={
        "model": list[Segment],
        "description": "The foreground's mask. `/segment` answers the same to clients whose"
        " User-Agent contains `hf_hub/` or `@huggingface/`.",
    },
    body=_body(PICTURE_INPUTS, {"properties": schemas(PictureParameters)}),
    paths={"/segment": "/hf/segment"},
)
BOTH = _api(
    task="sentiment",
    path="/hf",
    endpoint=classify_or_segment,
    max_bytes=lambda settings: (
        api.picture_bytes(settings)
        if hasattr(settings, "segment_max_bytes")
        else api.text_bytes(settings)
    ),
    operation="huggingFace",
    summary="As Hugging Face: text classification or image segmentation",
    reply={
        "model": list[Segment] | list[list[HubLabel]],
        "description": "The answer of `/hf/sentiment` to JSON with texts, or of `/hf/segment`"
        " to a picture, which may be base64 in JSON. `/` answers the same to clients whose"
        " User-Agent contains `hf_hub/` or `@huggingface/`.",
    },
    body=_body(INPUTS, {}),
    paths={"/": "/hf"},
)

"""`POST /semantic-segmentation`, compatible with PaddleX's basic serving.

The request is JSON with a picture in base64; the reply contains a label for each pixel. Fields and
envelope follow the page "General Semantic Segmentation Pipeline" of PaddleX 3.7's documentation and
`paddlex/inference/serving/basic_serving`.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from fastapi import Request, Response

from paddlepool.compat import api
from paddlepool.compat.api import JSON, CompatibleApi, refused, run_segment
from paddlepool.service.api.errors import PADDLEX
from paddlepool.service.api.routes import RoutingDep
from paddlepool.service.api.services import ServicesDep, base64_parts, run_off_loop
from paddlepool.service.api.uploads import json_object
from paddlepool.tasks.segment.request import SegmentRequest, SegmentResult

PART_LABELS = 256 * 1024
"""Number of labels that are written in one call."""
ZERO_AND_COMMA = np.frombuffer(b"0,", "<u2")[0]
"""The text `0,` as one little-endian number of two bytes. This number plus 1 is the text `1,`."""

ID_AND_COMMA = np.array([f"{number},".encode() for number in range(256)], "S4")
"""The number of each class as text with a comma, filled up with zero bytes."""


async def segment(request: Request, services: ServicesDep, routing: RoutingDep) -> Response:
    """Accepts JSON with any Content-Type: some of PaddleX's own examples send none."""
    body = await request.body()
    parse = partial(translate, body)
    result, headers, visualize = await run_segment(services, routing, parse, len(body))
    write = partial(_document, result, str(request.state.request_id), visualize)
    content = await run_off_loop(services, write, size=len(result.labels or b""))
    return Response(content, media_type=JSON, headers=headers)


def translate(body: bytes) -> tuple[SegmentRequest, bool]:
    """Return the task's request, and whether the reply has the mask as a picture.

    Unknown fields are ignored. Raises InputError.
    """
    document = json_object(body)
    if document.get("targetSize") is not None:
        raise refused("targetSize", "the model defines the input size; leave it out")
    visualize = document.get("visualize")
    if not isinstance(visualize, bool | None):
        raise refused("visualize", "must be true, false or null")
    picture = api.picture_in_base64(document.get("image"), "image")
    request = SegmentRequest(body=picture, output="mask", threshold=0.5, labels=True)
    return request, visualize is not False


def _document(result: SegmentResult, log_id: str, visualize: bool) -> bytes:
    head = f'{{"logId":"{log_id}","errorCode":0,"errorMsg":"Success","result":{{"labelMap":['
    size = f'],"size":[{result.height},{result.width}],"image":'
    image = [b'"', *base64_parts(result.image), b'"'] if visualize else [b"null"]
    write = _class_ids if result.output == "labels" else _labels
    labels = write(result.labels or b"")
    return b"".join([head.encode(), *labels, size.encode(), *image, b"}}"])


def _labels(mask: bytes) -> Iterator[memoryview]:
    """Yield a binary mask as text in parts, with commas: 1 for a byte of 128 or more, else 0."""
    pixels = np.frombuffer(mask, np.uint8)
    for at in range(0, len(pixels), PART_LABELS):
        part = pixels[at : at + PART_LABELS]
        written = memoryview((part >> 7) + ZERO_AND_COMMA).cast("B")  # the join makes the only copy
        yield written[:-1] if at + PART_LABELS >= len(pixels) else written


def _class_ids(labels: bytes) -> Iterator[bytes]:
    """Yield the class of each pixel, a byte of `labels`, as text in parts, with commas."""
    ids = np.frombuffer(labels, np.uint8)
    for at in range(0, len(ids), PART_LABELS):
        written = ID_AND_COMMA[ids[at : at + PART_LABELS]].tobytes().translate(None, b"\0")
        yield written[:-1] if at + PART_LABELS >= len(ids) else written


SCHEMA = {
    "type": "object",
    "properties": {
        "image": {"type": "string", "description": "The picture in base64; a URL is rejected."},
        "targetSize": {"description": "Rejected, unless null."},
        "visualize": {"type": ["boolean", "null"], "description": "If false, `image` is null."},
    },
    "required": ["image"],
}

API = CompatibleApi(
    name="paddlex",
    task="segment",
    path="/semantic-segmentation",
    endpoint=segment,
    operation="paddlexSemanticSegmentation",
    summary="As PaddleX: semantic segmentation",
    reply={
        "description": "`result` has `labelMap`, the class of each pixel (1 for foreground and 0"
        " for background from a matting model), `size` as [height, width], and `image`, the same as"
        " a PNG in base64.",
        "content": {JSON: {"schema": {"type": "object"}}},
    },
    body={JSON: {"schema": SCHEMA, "example": {"image": api.EXAMPLE}}},
    more=api.HEALTH,
    errors=PADDLEX,
)

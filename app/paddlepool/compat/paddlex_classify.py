"""`POST /image-classification`, compatible with PaddleX's basic serving.

Fields and envelope follow the page "General Image Classification Pipeline" of PaddleX 3.7's
documentation and `paddlex/inference/serving/basic_serving`.
"""

from functools import partial

import orjson
from fastapi import Request, Response

from paddlepool.compat import api, paddlex
from paddlepool.compat.api import JSON, CompatibleApi
from paddlepool.service.api.routes import RoutingDep, output_headers
from paddlepool.service.api.services import ServicesDep, run_off_loop
from paddlepool.service.api.uploads import json_object, picture_in_base64, refused
from paddlepool.tasks.classify.model import MAX_TOP
from paddlepool.tasks.classify.pipeline import ClassifyRequest, ClassifyResult, max_bytes

DIGITS = 5
"""Decimals of a score in a reply, as many as PaddleX gives."""


async def classify(request: Request, services: ServicesDep, routing: RoutingDep) -> Response:
    """Accepts JSON with any Content-Type: some of PaddleX's own examples send none."""
    body = await request.body()

    async def read() -> ClassifyRequest:
        return await run_off_loop(services, partial(translate, body), size=len(body))

    options = routing.options(services.settings)
    output = await services.dataplane.run("classify", read, **options)
    result: ClassifyResult = output.value
    categories = [
        {"id": class_id, "name": name, "score": round(score, DIGITS)}
        for class_id, name, score in result.labels
    ]
    reply = {
        "logId": str(request.state.request_id),
        "errorCode": 0,
        "errorMsg": "Success",
        "result": {"categories": categories, "image": None},
    }
    return Response(orjson.dumps(reply), media_type=JSON, headers=output_headers(output))


def translate(body: bytes) -> ClassifyRequest:
    """Return the task's request for PaddleX's body; ignores unknown fields. Raises InputError."""
    document = json_object(body)
    top = document.get("topk")
    if top is not None and (type(top) is not int or not 1 <= top <= MAX_TOP):
        raise refused("topk", f"must be a whole number from 1 to {MAX_TOP}, or null")
    visualize = document.get("visualize")
    if not isinstance(visualize, bool | None):
        raise refused("visualize", "must be true, false or null")
    if visualize:
        raise refused("visualize", "pictures with labels are not drawn here; send false or null")
    return ClassifyRequest(picture_in_base64(document.get("image"), "image"), top)


SCHEMA = {
    "type": "object",
    "properties": {
        "image": {"type": "string", "description": "The picture in base64; a URL is rejected."},
        "topk": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MAX_TOP,
            "description": "Number of labels; null: the model's own number.",
        },
        "visualize": {"type": ["boolean", "null"], "description": "True is rejected."},
    },
    "required": ["image"],
}

API = CompatibleApi(
    name="paddlex",
    task="classify",
    path="/image-classification",
    endpoint=classify,
    max_bytes=max_bytes,
    operation="paddlexImageClassification",
    summary="As PaddleX: image classification",
    reply={
        "description": "`result` has `categories` with `id`, `name` and `score`, best first.",
        "content": {JSON: {"schema": {"type": "object"}}},
    },
    body={JSON: {"schema": SCHEMA, "example": {"image": api.EXAMPLE}}},
    more=api.HEALTH,
    errors=paddlex.API.errors,
)

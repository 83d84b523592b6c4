"""GET /v2/models/{model}/sample: a request that the model answers, ready to be sent.

An extension of this server. The tensors are those of the self-test's first case, raw after the
JSON: the input of a network for pictures is millions of numbers.
"""

from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from paddlepool.contracts.tensors import Tensors
from paddlepool.service.api.errors import PROTOCOL, documented
from paddlepool.service.api.services import services_of
from paddlepool.service.api.v2.documents import raw_bytes
from paddlepool.service.api.v2.infer import RAW
from paddlepool.service.api.v2.models import add_by_version
from paddlepool.service.api.v2.tensors import BINARY_HEADER, NAMES


def router() -> APIRouter:
    routes = APIRouter(tags=["v2"])
    length = {
        "description": "Length in bytes of the JSON before the raw tensors.",
        "schema": {"type": "integer", "minimum": 0},
    }
    reply = {"content": {"application/octet-stream": RAW}, "headers": {BINARY_HEADER: length}}
    add_by_version(
        routes,
        "/sample",
        sample,
        one="A request that one version answers.",
        operation="Sample",
        response_class=Response,
        responses={200: reply, **documented(404, 503, form=PROTOCOL)},
    )
    return routes


async def sample(request: Request, model: str, version: int | None) -> Response:
    """A request that the model answers: a body for `/infer` with raw tensors; a task has none."""
    with services_of(request).registry.lease(model, version) as served:
        content, json_length = write_request(served.selftest.inputs)
    headers = {BINARY_HEADER: str(json_length)}
    return Response(content, media_type="application/octet-stream", headers=headers)


def write_request(inputs: Tensors) -> tuple[bytes, int]:
    """Write a request's body with raw tensors; also return the length of its JSON."""
    raw = [raw_bytes(array) for array in inputs.values()]
    listed: list[dict[str, Any]] = [
        {
            "name": name,
            "datatype": NAMES[array.dtype.name],
            "shape": array.shape,
            "parameters": {"binary_data_size": len(octets)},
        }
        for (name, array), octets in zip(inputs.items(), raw, strict=True)
    ]
    header = orjson.dumps({"inputs": listed})
    return b"".join([header, *raw]), len(header)

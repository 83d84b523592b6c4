"""Reject Triton's shared memory with a clear error: tensors must be sent in requests.

A client could write to a region while the server reads it, and a region's name is the name of a
file on this machine.
"""

from __future__ import annotations

from fastapi import APIRouter

from app.contracts.errors import InvalidTensor
from app.service.api.v2.tensors import NO_SHARED_MEMORY

KINDS = ("system", "cuda")


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)  # useless to OpenAPI clients
    for kind in KINDS:
        routes.add_api_route(
            f"/v2/{kind}sharedmemory/{{rest:path}}", refuse, methods=["GET", "POST"]
        )
    return routes


async def refuse(rest: str) -> None:
    """Always 400: shared memory is not offered."""
    del rest
    raise InvalidTensor(f"{NO_SHARED_MEMORY}; send tensors in the request, raw or as JSON")

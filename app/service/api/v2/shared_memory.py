"""Triton's shared memory, refused by name: tensors come in requests alone.

A region would be read while its owner writes it, and its name is that of a file of this machine.
"""

from __future__ import annotations

from fastapi import APIRouter

from app.contracts.errors import InvalidTensor
from app.service.api.v2.tensors import NO_SHARED_MEMORY

KINDS = ("system", "cuda")


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)  # nothing that a client of OpenAPI could use
    for kind in KINDS:
        routes.add_api_route(
            f"/v2/{kind}sharedmemory/{{rest:path}}", refuse, methods=["GET", "POST"]
        )
    return routes


async def refuse(rest: str) -> None:
    """Always 400: shared memory is not offered."""
    del rest
    raise InvalidTensor(f"{NO_SHARED_MEMORY}; send tensors in the request, raw or as JSON")

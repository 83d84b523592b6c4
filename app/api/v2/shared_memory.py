"""Triton's shared memory, refused by name: tensors come in requests alone.

A region would be read while its owner writes it, and its name is that of a file of this machine.
"""

from __future__ import annotations

from fastapi import APIRouter

from app.api.problems import documented
from app.api.v2.tensors import NO_SHARED_MEMORY
from app.contracts.errors import InvalidTensor

KINDS = ("system", "cuda")


def router() -> APIRouter:
    routes = APIRouter(tags=["v2"])
    for kind in KINDS:
        for method in ("GET", "POST"):
            routes.add_api_route(
                f"/v2/{kind}sharedmemory/{{rest:path}}",
                refuse,
                methods=[method],
                operation_id=f"{kind}SharedMemory{method.title()}",
                # 404: a path converter stops at a line break.
                responses=documented(400, 404, protocol=True),
            )
    return routes


async def refuse(rest: str) -> None:
    """Always 400: shared memory is not offered."""
    del rest
    raise InvalidTensor(f"{NO_SHARED_MEMORY}; send tensors in the request, raw or as JSON")

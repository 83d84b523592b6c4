"""The declaration of a door (a compatible API), and a reader for pictures in base64.

Decoding base64 is costly. The data plane therefore calls this reader only after the request has a
place in the queue.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.contracts.errors import FileMissing, InvalidParameter
from app.service.api.problems import ErrorForm
from app.service.api.routes import TaskRoute
from app.service.api.services import Services, ServicesDep
from app.service.api.v2.health import check_server
from app.settings.server import Settings


def task_route(
    path: str,
    endpoint: Callable[..., Awaitable[Response]],
    *,
    max_bytes: int,
    operation: str,
    summary: str,
    reply: Mapping[str, Any],
    body: Mapping[str, Any] | None = None,
) -> APIRouter:
    """Build a router with one POST route. Pass `body` if the endpoint reads the body itself."""
    router = APIRouter(tags=["compatible"], route_class=TaskRoute)
    router.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        max_body_size=max_bytes,
        operation_id=operation,
        summary=summary,
        response_class=Response,
        responses={200: dict(reply)},
        openapi_extra=None if body is None else {"requestBody": body},
    )
    return router


def add_health(router: APIRouter) -> None:
    """Add `GET /health`. Its reply has PaddleX's format; TEI's clients read only its status."""
    router.add_api_route("/health", health, include_in_schema=False)


async def health(request: Request, services: ServicesDep) -> Response:
    """Return 200 if every model is ready, like `/v2/health/ready`."""
    check_server(services)
    return JSONResponse({"logId": request.state.request_id, "errorCode": 0, "errorMsg": "Healthy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One compatible API of one task. Doors with the same name are enabled together.

    `routes` is called once at the start. `info` returns additional members for `/info`. `paths`
    maps other paths of the server, such as `/sentiment`, to paths of the door. The mapping applies
    only to clients whose User-Agent contains one of `agents`.
    """

    name: str
    task: str
    routes: Callable[[Settings], APIRouter]
    errors: ErrorForm
    headers: tuple[str, ...] = ()
    """The door's own reply headers. Pages from PADDLEPOOL_CORS_ORIGINS may read them."""
    agents: tuple[bytes, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    info: Callable[[Services], Mapping[str, Any]] | None = None


EXAMPLE = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQAQMAAAAlPW0iAAAABlBMVEX////IHh7kMBY6AAAAIElEQVR42mNgQALMB5hY"
    "FJg4BJgYGKDoxwemPw+QlQAAWxEE0gEHPTMAAAAASUVORK5CYII="
)
"""Example picture in base64 for the API page: a red disc on white, 16 pixels wide."""

NOT_FETCHED = (
    "pictures are not fetched by URL, because that would expose addresses that only the server "
    "can reach; send the picture itself"
)
ADDRESSES = (b"http://", b"https://", b"ftp://", b"file://")


def picture_in_base64(value: object, name: str) -> bytes:
    """Decode base64, with or without a `data:` prefix. Raises FileMissing and InvalidParameter."""
    if value is None or value in ("", b""):
        raise FileMissing(f"{name} is missing: the picture, base64")
    if not isinstance(value, str | bytes):
        raise InvalidParameter(f"{name} must be a picture as base64")
    text = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    beginning = text[:8].lower()
    if beginning.startswith(ADDRESSES):
        raise refused(name, NOT_FETCHED)
    if beginning.startswith(b"data:"):
        text = text[text.find(b",", 0, 256) + 1 :]
    try:
        picture = base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise InvalidParameter(f"{name} is not base64") from None
    if not picture:
        raise FileMissing(f"{name}: the picture has 0 bytes")
    return picture


def refused(name: str, why: str) -> InvalidParameter:
    """Build the error that rejects the field `name`."""
    return InvalidParameter(f"{name}: {why}", errors=({"field": f"body.{name}", "message": why},))

"""The declaration of a door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Response

from app.api.problems import ErrorForm
from app.api.task_routes import TaskRoute
from app.settings import Settings

TAG = "compatible"


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
    """A router with one POST route that runs a task; `reply` and `body` describe them in the
    OpenAPI document, `body` where the endpoint reads it itself."""
    router = APIRouter(tags=[TAG], route_class=TaskRoute)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One format in front of one task. Several of one name are switched together.

    `routes` is called once at start. Where a client is known by `agents`, parts of its User-Agent,
    `paths` lead it from paths that have another form to the door's own.
    """

    name: str
    task: str
    routes: Callable[[Settings], APIRouter]
    errors: ErrorForm
    headers: tuple[str, ...] = ()
    """Its own reply headers: pages of PADDLEPOOL_CORS_ORIGINS may read them."""
    agents: tuple[bytes, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)

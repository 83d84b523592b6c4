"""The short way of a plain request: a JSON body that is right at once, and a query of known names.

FastAPI solves an endpoint's parameters anew at each request, which takes more time than a short
text's way through the queue. Whatever is unusual or wrong still goes FastAPI's way, so that errors
are told as everywhere and the OpenAPI document is made of the same endpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.api.json_bodies import JsonRoute
from app.api.services import Services

JSON = "application/json"

Body = TypeVar("Body", bound=BaseModel)


class PlainQuery(BaseModel):
    """The parameters in the query of every task's endpoint, with the limits of app.api.replies."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str | None = Field(default=None, max_length=64)
    predictor: str | None = Field(default=None, max_length=32)
    timeout_ms: int | None = Field(default=None, ge=1)


NO_QUERY = PlainQuery()


def direct_route(
    body: type[Body], answer: Callable[[Body, Services, PlainQuery], Awaitable[Response]]
) -> type[APIRoute]:
    """A route class for `APIRouter`: plain requests are answered by `answer`."""

    class DirectRoute(JsonRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            documented = super().get_route_handler()

            async def handle(request: Request) -> Response:
                # The length is known and has been compared with the limit.
                plain = request.headers.get("content-type") == JSON and (
                    "content-length" in request.headers
                )
                query = _plain_query(request) if plain else None
                if query is not None:
                    try:
                        parsed = body.model_validate_json(await request.body())
                    except ValidationError:
                        pass  # FastAPI finds the same fault; the request keeps the bytes for it
                    else:
                        services = cast(Services, request.app.state.paddlepool)
                        return await answer(parsed, services, query)
                return await documented(request)

            return handle

    return DirectRoute


def _plain_query(request: Request) -> PlainQuery | None:
    """None where FastAPI must look at it."""
    if not request.scope["query_string"]:
        return NO_QUERY
    given = request.query_params.multi_items()
    values = dict(given)
    if len(values) != len(given):
        return None
    try:
        return PlainQuery.model_validate(values)
    except ValidationError:
        return None

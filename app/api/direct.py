"""The short way of a plain request: one without a query, or with a JSON body that is right at once
and a query of known names.

FastAPI solves an endpoint's parameters anew at each request, which takes more time than a short
text's way through the queue. Whatever is unusual or wrong still goes FastAPI's way, so that errors
are told as everywhere and the OpenAPI document is made of the same endpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from app.api.json_bodies import JsonRoute
from app.api.routing import Routing
from app.api.services import Services

JSON = "application/json"

Body = TypeVar("Body", bound=BaseModel)


NOTHING_ASKED = Routing()

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def plain_route(
    answer: Callable[[Request, Services, Routing], Awaitable[Response]],
) -> type[APIRoute]:
    """A class for the route of an endpoint that reads its body itself: requests without a query are
    answered by `answer`."""

    class PlainRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            documented = super().get_route_handler()

            async def handle(request: Request) -> Response:
                if request.scope["query_string"]:
                    return await documented(request)
                return await answer(request, _services(request), NOTHING_ASKED)

            return handle

    return PlainRoute


def direct_route(
    body: type[Body], answer: Callable[[Body, Services, Routing], Awaitable[Response]]
) -> type[APIRoute]:
    """A route class for `APIRouter`: plain requests are answered by `answer`."""

    class DirectRoute(JsonRoute):
        def get_route_handler(self) -> Handler:
            documented = super().get_route_handler()

            async def handle(request: Request) -> Response:
                # The length is known and has been compared with the limit.
                plain = request.headers.get("content-type") == JSON and (
                    "content-length" in request.headers
                )
                routing = _routing(request) if plain else None
                if routing is not None:
                    try:
                        parsed = body.model_validate_json(await request.body())
                    except ValidationError:
                        pass  # FastAPI finds the same fault; the request keeps the bytes for it
                    else:
                        return await answer(parsed, _services(request), routing)
                return await documented(request)

            return handle

    return DirectRoute


def _services(request: Request) -> Services:
    return cast(Services, request.app.state.paddlepool)


def _routing(request: Request) -> Routing | None:
    """None where FastAPI must look at the query."""
    if not request.scope["query_string"]:
        return NOTHING_ASKED
    given = request.query_params.multi_items()
    values = dict(given)
    if len(values) != len(given):
        return None
    try:
        return Routing.model_validate(values)
    except ValidationError:
        return None

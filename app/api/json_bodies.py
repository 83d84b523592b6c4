"""JSON bodies that come without saying so, as `curl -d` sends them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from app.api.forms import media_type

UNSAID = ("", "application/x-www-form-urlencoded")
"""The types of a body whose sender did not name one: none, or what curl writes of its own accord.
A page of another site may send the second without asking; app.api.middleware.sites refuses it."""

_TYPE = (b"content-type", b"application/json")


class JsonRoute(APIRoute):
    """A route whose body is read as JSON also where its type is one of UNSAID."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            if media_type(request) in UNSAID:
                others = [item for item in request.scope["headers"] if item[0] != _TYPE[0]]
                request = Request({**request.scope, "headers": [*others, _TYPE]}, request.receive)
            return await handle(request)

        return handle_json

"""The route class of every endpoint that runs a task.

FastAPI makes the OpenAPI document from the endpoint's signature. It does not answer the requests:
it would solve the signature anew for each, which takes longer than a short text's way through the
queue. Errors have the form that FastAPI gives them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any, TypeVar, get_type_hints

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from app.api.forms import media_type
from app.api.routing import ROUTING, Routing, timeout_seconds
from app.api.services import services_of
from app.contracts.errors import UnsupportedMediaType

UNSAID = ("", "application/x-www-form-urlencoded")
"""Types of a JSON body whose sender named none: no type, or what curl writes of its own accord. A
page of another site may send the second without asking; app.api.middleware.sites refuses it."""

Model = TypeVar("Model", bound=BaseModel)
Faults = list[Any]


class TaskRoute(APIRoute):
    """Calls an endpoint with those of `request`, `services`, `routing` and `body` that it takes.

    `body` is a pydantic model, read from JSON. Any other parameter is a text of the query, or None.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Coroutine[Any, Any, Response]] = self.endpoint
        names = signature(endpoint).parameters.keys()
        model: type[BaseModel] | None = get_type_hints(endpoint).get("body")
        texts = names - {"request", "services", "routing", "body"}

        async def handle(request: Request) -> Response:
            services = services_of(request)
            given: dict[str, Any] = {"services": services} if "services" in names else {}
            faults: Faults = []
            if model is not None:
                content = await request.body()
            if "routing" in names:
                given["routing"] = routing = _read_routing(request, faults)
                timeout_seconds(routing.timeout_ms, services.settings)
            if model is not None:
                given["body"] = _read_body(model, content, media_type(request), faults)
            if faults:
                raise RequestValidationError(faults)
            if "request" in names:
                given["request"] = request
            for name in texts:
                given[name] = request.query_params.get(name)
            return await endpoint(**given)

        return handle


NOTHING_ASKED = Routing()


def _read_routing(request: Request, faults: Faults) -> Routing:
    """Unknown parameters of the query are ignored; of two with one name the last counts."""
    if not request.scope["query_string"]:
        return NOTHING_ASKED
    query = request.query_params
    asked = {name: query[name] for name in ROUTING if name in query}
    return _checked(Routing, asked, "query", faults) or NOTHING_ASKED


def _read_body(model: type[Model], content: bytes, kind: str, faults: Faults) -> Model | None:
    """Raises UnsupportedMediaType, RequestValidationError where the body is not JSON, and
    HTTPException where it cannot be parsed at all."""
    if not content:
        faults.append({"type": "missing", "loc": ("body",), "msg": "Field required", "input": None})
        return None
    json_type = kind.startswith("application/") and kind.endswith(("/json", "+json"))
    if not json_type and kind not in UNSAID:
        raise UnsupportedMediaType("The body must be sent with Content-Type: application/json.")
    try:
        return model.model_validate_json(content)
    except ValidationError:
        pass  # read once more below, slowly: that tells the place, and takes UTF-16
    try:
        document = json.loads(content)
    except json.JSONDecodeError as error:
        fault = {"type": "json_invalid", "loc": ("body", error.pos), "msg": error.msg, "input": {}}
        raise RequestValidationError([fault]) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400) from error
    return _checked(model, document, "body", faults)


def _checked(model: type[Model], value: Any, where: str, faults: Faults) -> Model | None:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults += [
            {**fault, "loc": (where, *fault["loc"])} for fault in error.errors(include_url=False)
        ]
        return None

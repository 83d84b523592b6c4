"""The table of routes, the route class of task endpoints, and the parameters that these share.

The middleware needs a path's route for the body limit, the form of errors and the labels of
metrics, so it looks the route up first. FastAPI builds the OpenAPI document from a task endpoint's
signature but does not handle its requests: resolving the signature takes longer than a short text
spends in the queue. Validation errors have the same form as FastAPI's.
"""

import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Annotated, Any, TypeVar, get_type_hints

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from paddlepool.contracts.errors import ConfigError, InvalidParameter, UnsupportedMediaType
from paddlepool.contracts.ports import RequestOutput
from paddlepool.service.api.errors import ErrorForm, Refused, http_fault
from paddlepool.service.api.services import services_of
from paddlepool.service.api.uploads import FORM, RAW_CONTENT, media_type, read_upload
from paddlepool.settings.server import Settings

UNDECLARED_TYPES = ("", "application/x-www-form-urlencoded")
"""Content types of clients that send JSON without declaring it: none, or curl's default. A page of
another site can send the latter without a preflight; `middleware.keys` rejects such a request.
"""

GROUP_CHARACTERS = 512
"""Maximum characters of a choice of groups. `part:group` and a comma are at most 66."""

Model = TypeVar("Model", bound=BaseModel)
Faults = list[Any]


class Routing(BaseModel):
    """The parameters that choose the model, its instance group and the deadline.

    A missing one is None. `predictor` is an alias of `instance_group`.
    """

    model_config = ConfigDict(frozen=True)

    model: str | None = Field(
        None,
        max_length=64,
        description="Model to use, `name` or `name@version`; the repository's default if left out.",
    )
    instance_group: str | None = Field(
        None,
        max_length=GROUP_CHARACTERS,
        description="Instance group to use, or `part:group,part:group` for a composed model;"
        " the model's default if left out.",
    )
    predictor: str | None = Field(
        None,
        max_length=GROUP_CHARACTERS,
        description="Alias of `instance_group`.",
    )
    timeout_ms: int | None = Field(
        None, ge=1, description="Deadline in milliseconds; `/info` names the default and the limit."
    )

    def options(self, settings: Settings) -> dict[str, Any]:
        """Return the parameters as arguments of DataPlane.run().

        Raises InvalidParameter as split_model(), chosen_group() and timeout_seconds() do.
        """
        name, version = split_model(self.model)
        return {
            "model": name,
            "version": version,
            "group": chosen_group(self.instance_group, self.predictor),
            "timeout": timeout_seconds(self.timeout_ms, settings),
        }

    @classmethod
    def of_parameters(cls, parameters: Mapping[str, Any]) -> "Routing":
        """Return the routing in the parameters of a query or form, or in the members of JSON.

        Other names are ignored. Raises InvalidParameter for a value of another type. options()
        checks the values.
        """
        timeout = parameters.get("timeout_ms")
        if isinstance(timeout, str):
            timeout = whole_number(timeout)
        if "timeout_ms" in parameters and type(timeout) is not int:
            message = "timeout_ms must be a whole number of milliseconds"
            raise InvalidParameter(message, parameter="timeout_ms")
        values = {name: parameters.get(name) for name in ROUTING if name != "timeout_ms"}
        for name, value in values.items():
            if not isinstance(value, str | None):
                raise InvalidParameter(f"{name} must be a text", parameter=name)
        return cls.model_construct(**values, timeout_ms=timeout)


ROUTING = tuple(Routing.model_fields)
"""Names of the routing parameters."""

RoutingDep = Annotated[Routing, Query()]
"""For the signatures of task endpoints. TaskRoute reads the parameters without FastAPI."""


def chosen_group(instance_group: str | None, predictor: str | None) -> str | None:
    """Return the value of `instance_group` or its alias, or None without either.

    Raises InvalidParameter if they differ.
    """
    if predictor is None:
        return instance_group
    if instance_group not in (None, predictor):
        raise InvalidParameter(
            "instance_group and predictor, its alias, have different values; pass only one of them",
            parameter="instance_group",
        )
    return predictor


def timeout_seconds(timeout_ms: int | None, settings: Settings) -> float:
    """Return the timeout in seconds, the default for None.

    Raises InvalidParameter outside 1 to timeout_max_ms.
    """
    if timeout_ms is None:
        return settings.timeout_default_ms / 1000
    if not 1 <= timeout_ms <= settings.timeout_max_ms:
        raise InvalidParameter(
            f"timeout_ms is {timeout_ms}, allowed are 1 to {settings.timeout_max_ms}",
            parameter="timeout_ms",
            limit=settings.timeout_max_ms,
            received=timeout_ms,
        )
    return timeout_ms / 1000


def split_model(model: str | None) -> tuple[str | None, int | None]:
    """Split `u2netp@3` into name and version, which is None without `@`; return two None for None.

    Raises InvalidParameter for a version that is no whole number.
    """
    if model is None:
        return None, None
    name, at, version = model.partition("@")
    if not at:
        return name, None
    if (number := whole_number(version)) is None:
        message = "model is not `name` or `name@version` with an integer version"
        raise InvalidParameter(message, parameter="model")
    return name, number


def whole_number(text: str, *, digits: int = 9) -> int | None:
    """Return the number that `text` is; None unless it consists of 1 to `digits` ASCII digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def output_headers(output: RequestOutput) -> dict[str, str]:
    """Return the reply headers with the model, the group and the milliseconds of each stage."""
    timing = [f"{name};dur={seconds * 1000:.2f}" for name, seconds in output.stages.items()]
    return {
        "X-Model": f"{output.model}@{output.version}",
        "X-Instance-Group": output.group,
        "X-Predictor": output.group,  # its older name
        "Server-Timing": ", ".join(timing),
    }


async def uploaded_picture(request: Request) -> bytes:
    """Read a request whose body is a picture, or a form with a picture and nothing else.

    The form's field is `file` or `image_file`. The query may have the parameters of Routing, and no
    others. Raises FileMissing, UnsupportedMediaType, InvalidParameter, and the errors of
    Exchange.receive().
    """
    return (await read_upload(request, known=ROUTING, max_fields=0))[0]


PICTURE_BODY: dict[str, Any] = {
    "required": True,
    "description": "The picture, in a form or as the body, also with a type of `image/*`.",
    "content": {
        FORM: {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "string", "format": "binary"}},
            }
        },
        **RAW_CONTENT,
    },
}
"""The body that uploaded_picture() reads, as the `requestBody` of a route's `openapi_extra`."""


class TaskRoute(APIRoute):
    """Calls an endpoint with the parameters of its signature.

    The route supplies `request`, `services` and `routing`, and reads `body`, a pydantic model, from
    JSON. Any other parameter is a text of the query; it is None if absent. Raises
    RequestValidationError for a wrong body or routing parameter, and the errors of
    Exchange.receive(), read_body() and timeout_seconds().
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._respond = self.get_route_handler()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request without APIRoute's exit stacks, which no task endpoint needs."""
        response = await self._respond(Request(scope, receive, send))
        await response(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Coroutine[Any, Any, Response]] = self.endpoint
        names = frozenset(signature(endpoint).parameters)
        model: type[BaseModel] | None = get_type_hints(endpoint).get("body")
        texts = names - {"request", "services", "routing", "body"}

        async def handle(request: Request) -> Response:
            services = services_of(request)
            arguments: dict[str, Any] = {"services": services} if "services" in names else {}
            faults: Faults = []
            if model is not None:
                content = await whole_body(request.receive)
            if "routing" in names:
                arguments["routing"] = routing = _read_routing(request, faults)
                timeout_seconds(routing.timeout_ms, services.settings)
            if model is not None:
                arguments["body"] = read_body(model, content, media_type(request), faults)
            if faults:
                raise RequestValidationError(faults)
            if "request" in names:
                arguments["request"] = request
            for name in texts:
                arguments[name] = request.query_params.get(name)
            return await endpoint(**arguments)

        return handle


async def whole_body(receive: Receive) -> bytes:
    """Return a request's body. Starlette's own Request.body() takes several times longer.

    Raises ClientDisconnect, and the errors of Exchange.receive().
    """
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


NO_ROUTING = Routing()


def _read_routing(request: Request, faults: Faults) -> Routing:
    """Read the query's routing parameters; if one is wrong, add to `faults` and return NO_ROUTING.

    Other parameters are ignored; the last of repeated ones counts.
    """
    if not request.scope["query_string"]:
        return NO_ROUTING
    query = request.query_params
    parameters = {name: query[name] for name in ROUTING if name in query}
    return _checked(Routing, parameters, "query", faults) or NO_ROUTING


def read_body(model: type[Model], content: bytes, kind: str, faults: Faults) -> Model | None:
    """Parse the body as `model`. Adds to `faults` and returns None if it is empty or does not fit.

    `kind` is the body's media type. Raises UnsupportedMediaType, RequestValidationError if the body
    is not valid JSON, and HTTPException if it cannot be parsed for another reason, such as invalid
    UTF-8 or too deep nesting.
    """
    if not content:
        faults.append({"type": "missing", "loc": ("body",), "msg": "Field required", "input": None})
        return None
    json_type = kind.startswith("application/") and kind.endswith(("/json", "+json"))
    if not json_type and kind not in UNDECLARED_TYPES:
        raise UnsupportedMediaType("The body must be sent with Content-Type: application/json.")
    try:
        return model.model_validate_json(content)
    except ValidationError:
        pass  # the slower parser below reports the position and accepts UTF-16
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


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """What the middleware must know of a route.

    `template` is its path with variables, such as `/v2/models/{model}`; `pattern` matches the paths
    of requests. `max_body` is in bytes. `handle` is the route's ASGI application. `errors` is the
    route's own form of errors; None means problem+json.
    """

    template: str
    pattern: re.Pattern[str]
    methods: frozenset[str]
    max_body: int
    handle: ASGIApp
    errors: ErrorForm | None = None


class RouteTable:
    """All routes of the application in order of precedence. Paths are percent-decoded.

    Paths without variables are found in a dict. Starlette's router tries every route in turn, which
    doubles the time of a metadata request.
    """

    def __init__(
        self, routers: Iterable[tuple[APIRouter, ErrorForm | None]], *, default_max_body: int
    ) -> None:
        """Each router is paired with the form of its errors; `default_max_body` is in bytes.

        Raises ConfigError if two endpoints have the same path and method.
        """
        self.default_max_body = default_max_body
        routers = tuple(routers)
        endpoints: dict[tuple[str, str], Callable[..., Any]] = {}
        for route in (route for router, _ in routers for route in router.routes):
            if isinstance(route, APIRoute):
                for method in route.methods or ():
                    endpoint = endpoints.setdefault((method, route.path), route.endpoint)
                    if endpoint is not route.endpoint:  # compatible APIs share one for /health
                        raise ConfigError(f"two endpoints answer {method} {route.path}")
        # `path_regex` and the exit stack, which FastAPI's handlers need to close uploaded files,
        # are not documented. tests/service/api/test_framework.py fails if they change:
        # test_the_route_table_finds_the_route_that_starlette_finds and
        # test_fastapi_closes_the_files_of_its_own_endpoints.
        self.routes = tuple(
            RouteFacts(
                template=route.path,
                pattern=route.path_regex,
                methods=frozenset(route.methods or ()),
                max_body=route.max_body_size or default_max_body,
                handle=route.handle
                if isinstance(route, TaskRoute)
                else AsyncExitStackMiddleware(route.handle),
                errors=errors,
            )
            for router, errors in routers
            for route in router.routes
            if isinstance(route, APIRoute)
        )
        self._templates = [route for route in self.routes if route.pattern.groups]
        self._fixed = {
            path: [route for route in self.routes if route.pattern.match(path)]
            for path in {route.template for route in self.routes if not route.pattern.groups}
        }

    def find(self, path: str, method: str) -> RouteFacts | None:
        """Return the path's first route with this method, else its first route, else None."""
        routes = self._all(path)
        for route in routes:
            if method in route.methods:
                return route
        return routes[0] if routes else None

    def _all(self, path: str) -> list[RouteFacts]:
        fixed = self._fixed.get(path)
        return fixed or [route for route in self._templates if route.pattern.match(path)]

    def check_method(self, route: RouteFacts, path: str, method: str) -> None:
        """Raise Refused (405) unless `route`, which was found for `path`, accepts the method."""
        if method not in route.methods:
            allowed = {name for candidate in self._all(path) for name in candidate.methods}
            allowed |= {"HEAD"} if "GET" in allowed else set()
            detail = f"The method {method} is not allowed here."
            raise Refused(http_fault(405, detail, {"Allow": ", ".join(sorted(allowed))}))

    def handle(
        self, route: RouteFacts | None, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        """Call `route`. Raises HTTPException (404) if it is None, and Refused (405)."""
        path = scope["path"]
        if route is None:
            raise HTTPException(404)
        self.check_method(route, path, scope["method"])
        match = route.pattern.match(path) if route.pattern.groups else None
        scope["path_params"] = match.groupdict() if match else {}
        return route.handle(scope, receive, send)

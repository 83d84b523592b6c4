"""The declaration of a compatible API, and the functions that several of them share.

Decoding base64 is costly, so it waits until the request has a place in the queue.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from paddlepool.service.api.errors import ErrorForm
from paddlepool.service.api.routes import Routing, TaskRoute, output_headers
from paddlepool.service.api.services import Services, ServicesDep, run_off_loop
from paddlepool.service.api.uploads import NOT_FETCHED, picture_in_base64, refused
from paddlepool.service.api.v2.models import check_server
from paddlepool.settings.server import Settings
from paddlepool.tasks.segment.request import SegmentRequest, SegmentResult, SegmentSettings
from paddlepool.tasks.sentiment.pipeline import SentimentSettings

__all__ = ["NOT_FETCHED", "picture_in_base64", "refused"]

JSON = "application/json"
T = TypeVar("T")


def picture_bytes(settings: Settings) -> int:
    return settings.of(SegmentSettings).segment_max_bytes


def text_bytes(settings: Settings) -> int:
    return settings.of(SentimentSettings).sentiment_max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibleApi:
    """One compatible API of one task. APIs with the same name are enabled together.

    `endpoint` answers POST requests to `path` with at most `max_bytes` bytes. `operation` and
    `summary` are those of the OpenAPI document, `reply` describes the reply with status 200, and
    `body` maps media types to the request's content; None if the endpoint's signature declares it.
    `more` has the arguments of `add_api_route` for a second route. `errors` is the form of error
    replies. `info` returns additional members for `/info`. `paths` maps other paths of the server,
    such as `/sentiment`, to paths of this API. The mapping applies only to clients whose User-Agent
    contains one of `agents`.
    """

    name: str
    task: str
    path: str
    endpoint: Callable[..., Awaitable[Response]]
    max_bytes: Callable[[Settings], int] = picture_bytes
    operation: str
    summary: str
    reply: Mapping[str, Any]
    body: Mapping[str, Any] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    errors: ErrorForm
    headers: tuple[str, ...] = ()
    """The API's own reply headers. Pages from PADDLEPOOL_CORS_ORIGINS may read them."""
    agents: tuple[bytes, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    info: Callable[[Services], Mapping[str, Any]] | None = None

    def routes(self, settings: Settings) -> APIRouter:
        router = APIRouter(tags=["compatible"], route_class=TaskRoute)
        body = {"requestBody": {"required": True, "content": self.body}}
        router.add_api_route(
            self.path,
            self.endpoint,
            methods=["POST"],
            max_body_size=self.max_bytes(settings),
            operation_id=self.operation,
            summary=self.summary,
            response_class=Response,
            responses={200: dict(self.reply)},
            openapi_extra=body if self.body else None,
        )
        if self.more:
            router.add_api_route(**self.more)
        return router


async def health(request: Request, services: ServicesDep) -> Response:
    """Reply 200 if the server is ready, in PaddleX's format; TEI's clients read only the status.

    Raises ModelNotReady as check_server() does, which gives 503.
    """
    check_server(services)
    return JSONResponse({"logId": request.state.request_id, "errorCode": 0, "errorMsg": "Healthy"})


HEALTH = {"path": "/health", "endpoint": health, "include_in_schema": False}


async def run_segment(
    services: Services, routing: Routing, parse: Callable[[], tuple[SegmentRequest, T]], size: int
) -> tuple[SegmentResult, dict[str, str], T]:
    """Run a segment request; `parse` builds it after the request has a place in the queue.

    `parse` reads a body of `size` bytes. Returns the result, the reply's headers and the second
    value of `parse`. Raises the errors of `parse`, of Routing.options() and of DataPlane.run().
    """
    parsed: list[T] = []

    async def read() -> SegmentRequest:
        payload, other = await run_off_loop(services, parse, size=size)
        parsed.append(other)
        return payload

    output = await services.dataplane.run("segment", read, **routing.options(services.settings))
    return output.value, output_headers(output), parsed[0]


EXAMPLE = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQAQMAAAAlPW0iAAAABlBMVEX////IHh7kMBY6AAAAIElEQVR42mNgQALMB5hY"
    "FJg4BJgYGKDoxwemPw+QlQAAWxEE0gEHPTMAAAAASUVORK5CYII="
)
"""Example picture in base64 for the API page: a red disc on white, 16 pixels wide."""

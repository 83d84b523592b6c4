"""POST /tag: the request and reply forms."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from paddlepool.engine.dataplane import ready
from paddlepool.service.api.routes import RoutingDep, TaskRoute, output_headers
from paddlepool.service.api.services import ServicesDep
from paddlepool.settings.server import Settings
from tests.tasks.tagger.settings import TaggerSettings


class TagRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str


class TagScore(BaseModel):
    tag: str
    score: float


def build_router(settings: Settings) -> APIRouter:
    router = APIRouter(tags=["tag"], route_class=TaskRoute)
    router.add_api_route(
        "/tag",
        tag_text,
        methods=["POST"],
        max_body_size=settings.of(TaggerSettings).tagger_max_bytes,
        operation_id="tagText",
        summary="The scripts that a text is written in",
        responses={200: {"model": list[TagScore]}},
    )
    return router


async def tag_text(body: TagRequest, services: ServicesDep, routing: RoutingDep) -> Response:
    """Best first, at most PADDLEPOOL_TAGGER_MAX_TAGS."""
    options = routing.options(services.settings)
    answer = await services.dataplane.run("tagger", ready(body.text), **options)
    tags = answer.value[: services.settings.of(TaggerSettings).tagger_max_tags]
    rows = [{"tag": tag.name, "score": tag.score} for tag in tags]
    return JSONResponse(rows, headers=output_headers(answer) | {"X-Tags": str(len(tags))})

"""The task `tagger`: its endpoint, its pipeline and their declaration."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from paddlepool.plugin import (
    RequestContext,
    RoutingDep,
    ServedModelInfo,
    ServicesDep,
    Settings,
    Task,
    TaskRoute,
    Workers,
    errors,
    output_headers,
    parse_parameters,
    ready,
)
from text_tagger.scripts import SCRIPTS, Tag, shares, tags_of


class TaggerSettings(BaseModel):
    """Variables: PADDLEPOOL_ and the name of the field in capitals."""

    tagger_max_bytes: int = Field(4096, ge=1, description="Largest request body of /tag, in bytes.")
    tagger_max_tags: int = Field(3, ge=1, le=5, description="Most tags of one text.")


class Parameters(BaseModel):
    """`[parameters]` of config.toml: how the tags are called, in the order of the logits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tags: tuple[str, ...]


class TaggerPipeline:
    """Answers the requests of one model version; a payload is one text."""

    def __init__(self, info: ServedModelInfo, workers: Workers) -> None:
        """Raises ConfigError if the model has other tensors or tags than this task's."""
        self._tags = parse_parameters(info, Parameters).tags
        self._threads = workers.text
        if [spec.shape[1:] for spec in (*info.inputs, *info.outputs)] != [(len(SCRIPTS),)] * 2:
            raise errors.ConfigError(f"{info.name}: expected one tensor in and one out, [texts, 5]")
        if len(self._tags) != len(SCRIPTS):
            message = f"{info.name}: {len(self._tags)} tags for {len(SCRIPTS)} scripts"
            raise errors.ConfigError(message)

    async def run(self, payload: str, context: RequestContext) -> list[Tag]:
        """Answer one request. Runs on the event loop: nothing here may take a millisecond."""
        loop = asyncio.get_running_loop()
        with context.stage("preprocess"):
            job = {"shares": await loop.run_in_executor(self._threads, shares, payload)}
        [outputs] = await context.infer([job])
        [logits] = outputs.values()
        with context.stage("postprocess"):
            return await loop.run_in_executor(self._threads, tags_of, logits, self._tags)

    def close(self) -> None:
        """Close nothing: the workers belong to the server."""


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
    output = await services.dataplane.run("tagger", ready(body.text), **options)
    tags = output.value[: services.settings.of(TaggerSettings).tagger_max_tags]
    rows = [{"tag": tag.name, "score": tag.score} for tag in tags]
    return JSONResponse(rows, headers=output_headers(output) | {"X-Tags": str(len(tags))})


TASK = Task(
    build=TaggerPipeline,
    endpoints=build_router,
    settings=TaggerSettings,
    headers=("X-Tags",),
    card=("tags",),
)

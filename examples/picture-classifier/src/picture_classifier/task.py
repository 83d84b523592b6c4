"""The task `picture-classifier`: its endpoint, its pipeline and their declaration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from paddlepool.plugin import (
    PICTURE_BODY,
    Array,
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
    uploaded_picture,
)


class PictureClassifierSettings(BaseModel):
    """Variables: PADDLEPOOL_ and the name of the field in capitals."""

    picture_classifier_max_bytes: int = Field(
        10 << 20, ge=1, description="Maximum request body of /picture-classifier, in bytes."
    )


class Parameters(BaseModel):
    """`[parameters]` of a model's config.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=1, le=4096)
    labels: tuple[str, ...]


class Label(BaseModel):
    label: str
    score: float


class PictureClassifierPipeline:
    """Answers the requests of one model version."""

    def __init__(self, info: ServedModelInfo, workers: Workers) -> None:
        """Raises ConfigError if the model has other tensors than this task's."""
        self._parameters = parse_parameters(info, Parameters)
        self._workers = workers
        size, count = self._parameters.size, len(self._parameters.labels)
        shapes = [spec.shape[1:] for spec in (*info.inputs, *info.outputs)]
        if shapes != [(3, size, size), (count,)]:
            raise errors.ConfigError(
                f"{info.name}: expected an input [pictures, 3, {size}, {size}] and an output "
                f"[pictures, {count}], as size and labels say; the model has {shapes}"
            )
        self._input = info.inputs[0].name

    async def run(self, payload: bytes, context: RequestContext) -> list[Label]:
        """Answer one request. Runs on the event loop: nothing here may take a millisecond."""
        job = await self._workers.codec.read_picture(  # decodes and resizes in a codec process
            payload,
            "picture_classifier.picture:network_input",
            {"size": self._parameters.size, "input": self._input},
            context,
        )
        [outputs] = await context.infer([job])  # in a batch with those of other requests
        [logits] = outputs.values()
        with context.stage("postprocess"):  # in a thread
            return await asyncio.get_running_loop().run_in_executor(
                self._workers.text, best_labels, logits, self._parameters.labels
            )

    def close(self) -> None:
        """Close nothing: the workers belong to the server."""


def best_labels(logits: Array, names: Sequence[str]) -> list[Label]:
    """Return every label with its probability, best first."""
    powers = np.exp(logits[0] - logits[0].max())
    scores = powers / powers.sum()
    return [Label(label=names[at], score=float(scores[at])) for at in np.argsort(-scores)]


def build_router(settings: Settings) -> APIRouter:
    router = APIRouter(tags=["picture-classifier"], route_class=TaskRoute)
    router.add_api_route(
        "/picture-classifier",
        classify,
        methods=["POST"],
        max_body_size=settings.of(PictureClassifierSettings).picture_classifier_max_bytes,
        operation_id="picture_classifier",
        summary="The labels of a picture",
        responses={200: {"model": list[Label]}},
        openapi_extra={"requestBody": PICTURE_BODY},
    )
    return router


async def classify(request: Request, services: ServicesDep, routing: RoutingDep) -> Response:
    """Return all labels, best first."""
    picture = await uploaded_picture(request)
    options = routing.options(services.settings)
    output = await services.dataplane.run("picture-classifier", ready(picture), **options)
    labels = [label.model_dump() for label in output.value]
    return JSONResponse(labels, headers=output_headers(output))


TASK = Task(
    build=PictureClassifierPipeline,
    endpoints=build_router,
    settings=PictureClassifierSettings,
    card=("labels",),
)

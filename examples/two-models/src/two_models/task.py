"""The task `two-models`: its endpoint, its pipeline and their declaration."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from paddlepool.plugin import (
    PICTURE_BODY,
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
from two_models.crop import Box, cropped, subject_box

DETAIL = 256
"""Rows and columns of the picture that the subject is cut out of."""


class TwoModelsSettings(BaseModel):
    """Variables: PADDLEPOOL_ and the name of the field in capitals."""

    two_models_max_bytes: int = Field(
        10 << 20, ge=1, description="Maximum request body of /two-models, in bytes."
    )


class Parameters(BaseModel):
    """`[parameters]` of a model's config.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[str, ...]


class Subject(BaseModel):
    """`box` is left, top, right and bottom, as shares of the picture's width and height."""

    box: Box
    label: str


class TwoModelsPipeline:
    """Answers the requests of one version of a composed model."""

    def __init__(self, info: ServedModelInfo, workers: Workers) -> None:
        """Raises ConfigError if a part has other tensors than this task's."""
        self._labels = parse_parameters(info, Parameters).labels
        self._workers = workers
        self._inputs: dict[str, str] = {}
        self._sides: dict[str, int] = {}
        for part, model in info.parts.items():
            shapes = [spec.shape for spec in model.inputs]
            if len(shapes) != 1 or shapes[0] != (-1, 3, *shapes[0][-1:] * 2):
                raise errors.ConfigError(
                    f"{model.name}: expected one input [pictures, 3, side, side], it has {shapes}"
                )
            self._inputs[part], self._sides[part] = model.inputs[0].name, shapes[0][-1]
        shapes = [spec.shape[1:] for spec in info.parts["classify"].outputs]
        if shapes != [(len(self._labels),)]:
            raise errors.ConfigError(
                f"{info.name}: {len(self._labels)} labels for outputs of shape {shapes}"
            )

    async def run(self, payload: bytes, context: RequestContext) -> list[Subject]:
        """Answer one request. Runs on the event loop: nothing here may take a millisecond."""
        picture = await self._workers.codec.read_picture(  # decodes and resizes in a codec process
            payload,
            "two_models.picture:two_sizes",
            {"whole": self._sides["find"], "detail": DETAIL},
            context,
        )
        [outputs] = await context.infer([{self._inputs["find"]: picture["whole"]}], part="find")
        [logits] = outputs.values()
        box = subject_box(logits)
        if box is None:
            return []  # the second model does not run
        with context.stage("postprocess"):  # in a thread
            crop = await asyncio.get_running_loop().run_in_executor(
                self._workers.text, cropped, picture["detail"], box, self._sides["classify"]
            )
        [outputs] = await context.infer([{self._inputs["classify"]: crop}], part="classify")
        [scores] = outputs.values()
        return [Subject(box=box, label=self._labels[int(scores[0].argmax())])]

    def payload_of(self, sample: bytes) -> bytes:
        """Return the payload of the sample request, which is the file's content."""
        return sample

    def answer_of(self, value: list[Subject]) -> list[Any]:
        """Return the answer as JSON stores it beside the sample: lists, no tuples."""
        return [subject.model_dump(mode="json") for subject in value]

    def check(self, answer: list[Any], expected: list[Any]) -> None:
        """Raise BackendError if the subject is another one, or elsewhere."""
        if answer != expected:
            raise errors.BackendError(f"the answer is {answer}, expected is {expected}")

    def close(self) -> None:
        """Close nothing: the workers belong to the server."""


def build_router(settings: Settings) -> APIRouter:
    router = APIRouter(tags=["two-models"], route_class=TaskRoute)
    router.add_api_route(
        "/two-models",
        find_subject,
        methods=["POST"],
        max_body_size=settings.of(TwoModelsSettings).two_models_max_bytes,
        operation_id="two_models",
        summary="Where the subject of a picture is, and its colour",
        responses={200: {"model": list[Subject]}},
        openapi_extra={"requestBody": PICTURE_BODY},
    )
    return router


async def find_subject(request: Request, services: ServicesDep, routing: RoutingDep) -> Response:
    """Return a list with the subject; it is empty if the picture has none."""
    picture = await uploaded_picture(request)
    options = routing.options(services.settings)
    output = await services.dataplane.run("two-models", ready(picture), **options)
    subjects = [subject.model_dump(mode="json") for subject in output.value]
    return JSONResponse(subjects, headers=output_headers(output))


TASK = Task(
    build=TwoModelsPipeline,
    parts=("find", "classify"),
    endpoints=build_router,
    settings=TwoModelsSettings,
    card=("labels",),
)

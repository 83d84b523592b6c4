"""POST /classify: the formats of requests and replies; `pipeline` does the work in between."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from paddlepool.contracts.ports import RequestOutput
from paddlepool.engine.dataplane import ready
from paddlepool.service.api.routes import ROUTING, Routing, TaskRoute, output_headers
from paddlepool.service.api.services import Services, ServicesDep, run_off_loop
from paddlepool.service.api.uploads import (
    FORM,
    RAW_CONTENT,
    json_object,
    json_parameters,
    media_type,
    picture_in_base64,
    read_upload,
)
from paddlepool.settings.server import Settings
from paddlepool.tasks.classify.pipeline import (
    ClassifyOptions,
    ClassifyRequest,
    ClassifyResult,
    max_bytes,
)
from paddlepool.tasks.options import query_parameters, schemas

JSON = "application/json"
OPTIONS = schemas(ClassifyOptions)
PARAMETERS = (*OPTIONS, *ROUTING)
DIGITS = 7
"""Decimals of a score in a reply."""

EXAMPLE = {
    "labels": [
        {"label": "7", "class_id": 7, "score": 0.9741},
        {"label": "9", "class_id": 9, "score": 0.0183},
    ],
    "width": 280,
    "height": 280,
    "model": "mnist",
    "version": 1,
}
DRAWN_SEVEN = (
    "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcAQAAAABaduI5AAAAOElEQVR42mP8z8DwkYmBgYEBD8HIAmGxMPx/AZdA"
    "sC5AWAz//9t/gIr9d4CJ/fkPE/sLN48Nu0UAIZwPI1JbTu4AAAAASUVORK5CYII="
)
"""Example picture in base64 for the API page: a 7, black on white, 28 pixels wide."""


class ClassLabel(BaseModel):
    label: str
    class_id: int = Field(description="Number of the class, from 0.")
    score: float = Field(
        description="The model's own number or its softmax; usually a probability from 0 to 1."
    )


class ClassifyReply(BaseModel):
    """The best labels of a picture."""

    labels: list[ClassLabel] = Field(description="Best first.")
    width: int = Field(description="Width of the upright picture in pixels.")
    height: int = Field(description="Height of the upright picture in pixels.")
    model: str
    version: int


def build_router(settings: Settings) -> APIRouter:
    router = APIRouter(tags=["classify"], route_class=TaskRoute)
    router.add_api_route(
        "/classify",
        classify_picture,
        methods=["POST"],
        max_body_size=max_bytes(settings),
        operation_id="classifyPicture",
        summary="Labels of a picture, with scores",
        response_class=Response,
        responses={
            200: {
                "model": ClassifyReply,
                "description": "The best labels.",
                "content": {JSON: {"example": EXAMPLE}},
            }
        },
        openapi_extra={
            "parameters": query_parameters(ClassifyOptions, Routing),
            "requestBody": _request_body(),
        },
    )
    return router


async def classify_picture(request: Request, services: ServicesDep) -> Response:
    """Takes a picture as a form's file, as the body, or in base64 as `image` of JSON.

    Uses only the first of several frames or pages. Each parameter may stand in the query, in the
    form or in the JSON.
    """
    if media_type(request) == JSON:
        return await _of_json(request, services)
    picture, _, parameters = await read_upload(
        request, known=PARAMETERS, max_fields=services.settings.form_max_fields
    )
    payload = ClassifyRequest(picture, _top(parameters))
    return _reply(await _run(services, ready(payload), parameters))


async def _of_json(request: Request, services: Services) -> Response:
    body = await request.body()
    document = await run_off_loop(services, partial(json_object, body), size=len(body))
    parameters = json_parameters(request, document, known=PARAMETERS, content=["image"])
    top = _top(parameters)

    async def read() -> ClassifyRequest:
        decode = partial(picture_in_base64, document.get("image"), "image")
        return ClassifyRequest(await run_off_loop(services, decode, size=len(body)), top)

    return _reply(await _run(services, read, parameters))


def _top(parameters: Mapping[str, Any]) -> int | None:
    return ClassifyOptions(**{name: parameters[name] for name in OPTIONS if name in parameters}).top


async def _run(
    services: Services,
    read: Callable[[], Awaitable[ClassifyRequest]],
    parameters: Mapping[str, Any],
) -> RequestOutput:
    options = Routing.of_parameters(parameters).options(services.settings)
    return await services.dataplane.run("classify", read, **options)


def _reply(output: RequestOutput) -> Response:
    result: ClassifyResult = output.value
    content = {
        "labels": [
            {"label": name, "class_id": class_id, "score": round(score, DIGITS)}
            for class_id, name, score in result.labels
        ],
        "width": result.width,
        "height": result.height,
        "model": output.model,
        "version": output.version,
    }
    return Response(orjson.dumps(content), media_type=JSON, headers=output_headers(output))


def _request_body() -> dict[str, Any]:
    binary = {"type": "string", "format": "binary"}
    form = {
        "type": "object",
        "required": ["file"],
        "properties": {"file": binary | {"description": "The picture; or `image_file`."}},
        "additionalProperties": {"type": "string"},
    }
    image = {"type": "string", "description": "The picture in base64; a URL is rejected."}
    document = {
        "type": "object",
        "required": ["image"],
        "properties": {"image": image},
        "additionalProperties": True,  # the parameters
    }
    return {
        "required": True,
        "description": "The picture, in a form, as the body, also with a type of `image/*`, or in "
        "JSON. Each parameter may be a field of the form or a member of the JSON instead.",
        "content": {
            FORM: {"schema": form},
            JSON: {"schema": document, "example": {"image": DRAWN_SEVEN, "top": 3}},
            **RAW_CONTENT,
        },
    }

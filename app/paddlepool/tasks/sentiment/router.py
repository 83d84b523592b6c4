"""POST /sentiment: the formats of requests and replies; `pipeline` does the work in between."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from paddlepool.contracts.errors import InvalidParameter
from paddlepool.contracts.ports import RequestOutput
from paddlepool.engine.dataplane import ready
from paddlepool.service.api.routes import ROUTING, Routing, RoutingDep, TaskRoute, output_headers
from paddlepool.service.api.services import Services, ServicesDep
from paddlepool.service.api.uploads import check_query
from paddlepool.settings.server import Settings
from paddlepool.tasks.sentiment.pipeline import (
    SentimentSettings,
    TextRequest,
    TextScores,
    TopK,
    check_texts,
)


def _without_routing(schema: dict[str, Any]) -> None:
    del schema["additionalProperties"]
    for name in ROUTING:
        del schema["properties"][name]


class SentimentParameters(Routing):
    """Options of the reply.

    `model`, `instance_group`, its alias `predictor`, and `timeout_ms` may stand here or in the
    query, but not in both.
    """

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_without_routing)

    top_k: TopK | None = Field(
        default=None, description="At most this many labels a text, best first."
    )
    tokens: bool | None = Field(default=False, description="Tell how many tokens the model read.")
    truncated: bool | None = Field(default=False, description="Tell whether the model read it all.")


Text = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
"""The task itself rejects an empty text, with its own error."""
Texts = Annotated[list[Text], Field(fail_fast=True)]
"""Validation stops at the first error: 100,000 numbers must not produce 100,000 messages."""


class SentimentRequest(BaseModel):
    """Either `text`, or `inputs` as Hugging Face's text-classification takes them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Text | None = None
    inputs: Text | Texts | None = None
    parameters: SentimentParameters | None = None


class LabelScore(BaseModel):
    label: str
    label_zh: str | None = None
    score: float = Field(ge=0, le=1)


class TextResult(BaseModel):
    """The reply for one text if `tokens` or `truncated` is requested; else it is `scores` alone."""

    scores: list[LabelScore]
    tokens: int | None = None
    truncated: bool | None = None


EXAMPLES: dict[str, Example] = {
    "one": {"summary": "One text", "value": {"text": "今天收到了大学的录取通知书，太开心了！"}},
    "several": {
        "summary": "Several texts, the two best labels of each",
        "value": {"inputs": ["好难过，想哭", "什么？这也太突然了！"], "parameters": {"top_k": 2}},
    },
    "read": {
        "summary": "How much of a text the model read",
        "value": {
            "inputs": "明天还要早起上班。",
            "parameters": {"top_k": 1, "tokens": True, "truncated": True},
        },
    },
}
"""Example requests, which the API's interactive pages offer to send. The texts are our own."""

HAPPY = {"label": "happy", "label_zh": "快乐", "score": 0.9902}
SAD = {"label": "sad", "label_zh": "悲伤", "score": 0.9571}
REPLIES = {
    "one": {"summary": "Of one text", "value": [HAPPY]},
    "several": {"summary": "Of several texts", "value": [[HAPPY], [SAD]]},
    "read": {
        "summary": "With `tokens` and `truncated`",
        "value": {"scores": [SAD], "tokens": 9, "truncated": False},
    },
}


def build_router(settings: Settings) -> APIRouter:
    router = APIRouter(tags=["sentiment"], route_class=TaskRoute)
    router.add_api_route(
        "/sentiment",
        classify_sentiment,
        methods=["POST"],
        max_body_size=settings.of(SentimentSettings).sentiment_max_bytes,
        operation_id="classifySentiment",
        summary="Emotions of one or more texts, with scores",
        response_class=Response,
        responses={
            200: {
                "model": list[LabelScore] | list[list[LabelScore]] | TextResult | list[TextResult],
                "description": "Best label first: a list for a string, a list of them for a list.",
                "content": {"application/json": {"examples": REPLIES}},
            }
        },
    )
    return router


async def classify_sentiment(
    request: Request,
    body: Annotated[SentimentRequest, Body(openapi_examples=EXAMPLES)],
    services: ServicesDep,
    routing: RoutingDep,
) -> Response:
    """Classifies `text` or `inputs`. A string gets one list of labels, a list gets one per text."""
    check_query(request, ROUTING)
    parameters = body.parameters or NO_PARAMETERS
    texts, single = _texts(body)
    payload = TextRequest(texts, parameters.top_k)
    output = await classify(services, payload, _in_one_place(routing, parameters))
    results: tuple[TextScores, ...] = output.value
    replies = [_render(result, parameters) for result in results]
    truncated = "true" if any(result.truncated for result in results) else "false"
    return Response(
        orjson.dumps(replies[0] if single else replies),
        media_type="application/json",
        headers=output_headers(output) | {"X-Truncated": truncated},
    )


async def classify(services: Services, request: TextRequest, routing: Routing) -> RequestOutput:
    """Check and classify texts, and count their padding for /metrics.

    Every format of requests but `/v2` calls this. Raises the errors of check_texts(),
    Routing.options() and DataPlane.run().
    """
    settings = services.settings
    check_texts(request.texts, limits=settings.of(SentimentSettings))
    output = await services.dataplane.run("sentiment", ready(request), **routing.options(settings))
    services.metrics.padded(
        model=output.model,
        group=output.group,
        tokens=sum(result.padding for result in output.value),
    )
    return output


def _texts(body: SentimentRequest) -> tuple[list[str], bool]:
    """Return the texts, and whether the request has a single text in place of a list.

    Raises InvalidParameter unless it has either `text` or `inputs`.
    """
    if (body.text is None) == (body.inputs is None):
        raise InvalidParameter(
            "expected exactly one of text and inputs, received "
            + ("neither" if body.text is None else "both")
        )
    texts = body.text if body.text is not None else body.inputs
    return ([texts], True) if isinstance(texts, str) else (list(texts or ()), False)


NO_PARAMETERS = SentimentParameters()


def _in_one_place(routing: Routing, parameters: SentimentParameters) -> Routing:
    """Return the routing of the query, completed by that of the JSON's `parameters`.

    Raises InvalidParameter for a name that is in both.
    """
    if parameters is NO_PARAMETERS:
        return routing
    named = {name: value for name in ROUTING if (value := getattr(parameters, name)) is not None}
    for name in named:
        if getattr(routing, name) is not None:
            message = f"{name} is given both in the query and in parameters"
            raise InvalidParameter(message, parameter=name)
    return routing.model_copy(update=named) if named else routing


def _render(result: TextScores, parameters: SentimentParameters) -> Any:
    scores = [
        {"label": label, "score": round(score, 7)}
        if label_zh is None
        else {"label": label, "label_zh": label_zh, "score": round(score, 7)}
        for label, label_zh, score in result.scores
    ]
    reply: dict[str, Any] = {"scores": scores}
    if parameters.tokens:
        reply["tokens"] = result.tokens
    if parameters.truncated:
        reply["truncated"] = result.truncated
    return reply if len(reply) > 1 else scores

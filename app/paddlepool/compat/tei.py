"""`POST /predict`, compatible with text-embeddings-inference: texts in, labels with scores out.

Requests, replies and errors follow `docs/openapi.json` and `router/src/http/server.rs` of
https://github.com/huggingface/text-embeddings-inference, 1.7.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from paddlepool.compat.api import HEALTH, JSON, CompatibleApi, refused, text_bytes
from paddlepool.contracts.errors import InvalidParameter, TextEmpty
from paddlepool.service.api.errors import ErrorForm, Fault
from paddlepool.service.api.routes import RoutingDep, output_headers
from paddlepool.service.api.services import Services, ServicesDep
from paddlepool.tasks.sentiment.pipeline import Parameters, SentimentSettings, TextRequest
from paddlepool.tasks.sentiment.router import classify

_SHAPE = 'inputs must be a text, or a batch of texts as [["a"],["b"]]'
_TEXT = {"type": "string", "minLength": 1}
_ONE = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 1}
_INPUTS: dict[str, Any] = {"oneOf": [_TEXT, _ONE, {"type": "array", "items": _ONE}]}


class PredictRequest(BaseModel):
    """A text, or a batch of texts. Unknown members are ignored, as in TEI."""

    model_config = ConfigDict(frozen=True, strict=True)

    inputs: Any = Field(
        json_schema_extra=_INPUTS,
        description='A text, or a batch as `[["a"],["b"]]`; `["a","b"]`, a pair, is rejected.',
    )
    truncate: bool | None = Field(
        False, description="Truncate a text that is too long for the model; otherwise reject it."
    )
    truncation_direction: Annotated[
        Literal["Left", "Right"] | None,
        # Lowercase is accepted but undocumented: generators would give `left` and `Left` one name.
        BeforeValidator(lambda word: {"left": "Left", "right": "Right"}.get(str(word), word)),
    ] = Field("Right", description="`Left` with truncate is rejected.")
    raw_scores: bool | None = Field(
        False, description="Rejected if true: scores are probabilities."
    )


class Prediction(BaseModel):
    score: float = Field(ge=0, le=1)
    label: str


class TeiError(BaseModel):
    """An error in the form of text-embeddings-inference."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


async def predict(body: PredictRequest, services: ServicesDep, routing: RoutingDep) -> Response:
    """Classifies a text, or each text of a batch."""
    if body.raw_scores:
        raise refused("raw_scores", "not supported; scores are probabilities")
    if body.truncate and body.truncation_direction == "Left":
        raise refused("truncation_direction", "left is not supported; texts are cut at the end")
    texts, single = read_inputs(body.inputs)
    request = TextRequest(texts, truncate=bool(body.truncate))
    output = await classify(services, request, routing)
    replies = [
        [{"score": round(score, 7), "label": label} for label, _, score in result.scores]
        for result in output.value
    ]
    content = orjson.dumps(replies[0] if single else replies)
    return Response(content, media_type=JSON, headers=output_headers(output))


def read_inputs(inputs: Any) -> tuple[list[str], bool]:
    """Return the texts, and whether `inputs` is one text, not a batch.

    Raises TextEmpty for an empty list, and InvalidParameter for pairs of texts and for any other
    value. Whether a text is empty is not checked here.
    """
    if isinstance(inputs, list) and len(inputs) == 1 and isinstance(inputs[0], str):
        inputs = inputs[0]  # TEI reads a pair without its second text as a single text
    if isinstance(inputs, str):
        return [inputs], True
    if not isinstance(inputs, list):
        raise InvalidParameter(_SHAPE)
    if not inputs:
        raise TextEmpty("inputs cannot be empty")
    if len(inputs) == 2 and all(isinstance(item, str) for item in inputs):
        why = 'pairs such as ["a","b"] are not supported; a batch is [["a"],["b"]]'
        raise refused("inputs", why)
    texts = []
    for item in inputs:
        texts_only = isinstance(item, list) and all(isinstance(text, str) for text in item)
        if not texts_only or len(item) not in (1, 2):
            raise InvalidParameter(_SHAPE)
        if len(item) == 2:
            raise refused("inputs", "pairs are not supported; put each text in its own list")
        texts.append(item[0])
    return texts, False


def described(services: Services) -> dict[str, Any]:
    """Return the members of TEI's `/info` about the default model of the task `sentiment`.

    Clients read the limits and labels. While the model is not served, there are no labels and the
    limits in tokens are 0.
    """
    own = services.settings.of(SentimentSettings)
    name = services.dataplane.default_models.get("sentiment")
    served = next((model for model in services.registry.served() if model.name == name), None)
    labels: Sequence[str] = ()
    tokens = 0
    if served is not None:
        parameters = Parameters.model_validate(dict(served.config.parameters))
        labels, tokens = parameters.labels, parameters.max_tokens
    return {
        "model_id": name,
        "model_sha": None,
        "model_dtype": "float32",
        "model_type": {
            "classifier": {
                "id2label": {str(number): label for number, label in enumerate(labels)},
                "label2id": {label: number for number, label in enumerate(labels)},
            }
        },
        "max_concurrent_requests": services.settings.max_connections,
        "max_input_length": tokens,
        "max_batch_tokens": tokens * own.text_max_inputs,
        "max_batch_requests": None,
        "max_client_batch_size": own.text_max_inputs,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "sha": None,
        "docker_label": None,
    }


_TYPES = {424: "Backend", 429: "Overloaded", 500: "Backend", 501: "Backend", 503: "Unhealthy"}


def _write(fault: Fault, _request_id: str) -> Mapping[str, Any]:
    kind = "Empty" if fault.code == "text_empty" else _TYPES.get(fault.status, "Validation")
    return {"error": fault.detail, "error_type": kind}


API = CompatibleApi(
    name="tei",
    task="sentiment",
    path="/predict",
    endpoint=predict,
    max_bytes=text_bytes,
    operation="teiPredict",
    summary="As text-embeddings-inference: labels of one or more texts",
    reply={
        "model": list[Prediction] | list[list[Prediction]],
        "description": "Best label first: a list for one text, a list of lists for a batch.",
    },
    more=HEALTH,
    info=described,
    errors=ErrorForm(
        model=TeiError,
        write=_write,
        statuses={
            "text_empty": 400,
            "invalid_request": 422,
            "overloaded": 429,
            504: 424,
            **dict.fromkeys(("text_too_long", "too_many_inputs"), 413),
            **dict.fromkeys(("worker_crashed", "model_output_invalid", "model_not_found"), 424),
        },
    ),
)

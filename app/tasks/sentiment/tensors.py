"""The task as a tensor model: texts in; their labels, best first, and the scores out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from app.contracts.errors import InvalidParameter
from app.contracts.task_tensors import STRINGS, TaskTensors, strings_of
from app.contracts.tensors import Array, Tensors, TensorSpec
from app.settings.server import Settings
from app.tasks.sentiment.pipeline import TextScores
from app.tasks.sentiment.texts import MAX_TOP_K, SentimentSettings, check_texts

INPUTS = (TensorSpec("text", STRINGS, (-1,)),)
OUTPUTS = (
    TensorSpec("labels", STRINGS, (-1, -1)),
    TensorSpec("labels_zh", STRINGS, (-1, -1)),
    TensorSpec("scores", "float32", (-1, -1)),
    TensorSpec("tokens", "int32", (-1,)),
    TensorSpec("truncated", "bool", (-1,)),
)


def tensors(settings: Settings) -> TaskTensors:
    own = settings.of(SentimentSettings)
    return TaskTensors(
        inputs=INPUTS,
        outputs=OUTPUTS,
        parameters=("top_k", "model"),
        read=partial(_read, limits=own),
        write=_write,
        max_bytes=own.sentiment_max_bytes,
        padding=lambda value: sum(result.padding for result in value),
    )


def _read(
    inputs: Tensors, parameters: Mapping[str, Any], *, limits: SentimentSettings
) -> Sequence[str]:
    top_k = parameters.get("top_k", 1)
    if type(top_k) is not int or not 1 <= top_k <= MAX_TOP_K:
        raise InvalidParameter(f"top_k must be an integer from 1 to {MAX_TOP_K}", limit=MAX_TOP_K)
    found: list[bytes] = inputs["text"].tolist()
    texts = [_decoded(text, position) for position, text in enumerate(found, 1)]
    check_texts(texts, limits=limits)
    return texts


def _decoded(text: bytes, position: int) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InvalidParameter(
            f"text {position} is not UTF-8 from byte {error.start}", received=error.start
        ) from None


def _write(value: Sequence[TextScores], parameters: Mapping[str, Any]) -> Tensors:
    """All texts have the same number of labels. Chinese names are empty if the model has none."""
    ranked = [result.scores[: parameters.get("top_k")] for result in value]
    return {
        "labels": _strings([[score.label for score in scores] for scores in ranked]),
        "labels_zh": _strings([[score.label_zh or "" for score in scores] for scores in ranked]),
        "scores": np.array([[score.score for score in scores] for scores in ranked], np.float32),
        "tokens": np.array([result.tokens for result in value], np.int32),
        "truncated": np.array([result.truncated for result in value], np.bool_),
    }


def _strings(rows: Sequence[Sequence[str]]) -> Array:
    return strings_of([text.encode() for row in rows for text in row], (len(rows), len(rows[0])))

"""What every task's reply has in common: where the answer came from and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query

from app.contracts.errors import InvalidParameter
from app.dataplane import Answer
from app.settings import Settings

ModelParameter = Annotated[
    str | None,
    Query(
        max_length=64,
        description="Model to use, `name` or `name@version`; the repository's default if left out.",
    ),
]
PredictorParameter = Annotated[
    str | None,
    Query(max_length=32, description="Instance group to use; the model's default if left out."),
]
TimeoutParameter = Annotated[
    int | None,
    Query(ge=1, description="Deadline in milliseconds; `/info` names the default and the limit."),
]


def timeout_seconds(timeout_ms: int | None, settings: Settings) -> float:
    """The request's deadline in seconds. Raises InvalidParameter outside 1 … timeout_max_ms."""
    if timeout_ms is None:
        return settings.timeout_default_ms / 1000
    if not 1 <= timeout_ms <= settings.timeout_max_ms:
        raise InvalidParameter(
            f"timeout_ms is {timeout_ms}, allowed are 1 to {settings.timeout_max_ms}",
            limit=settings.timeout_max_ms,
            received=timeout_ms,
        )
    return timeout_ms / 1000


def split_model(model: str | None) -> tuple[str | None, int | None]:
    """`u2netp@3` is version 3 of u2netp; without a version the registry chooses."""
    if model is None:
        return None, None
    name, at, version = model.partition("@")
    if not at:
        return name, None
    if not (version.isascii() and version.isdecimal() and len(version) <= 9):
        raise InvalidParameter("model is not `name` or `name@version` with an integer version")
    return name, int(version)


def server_timing(stages: Mapping[str, float]) -> str:
    """The W3C Server-Timing header; `stages` in seconds, the header in milliseconds."""
    return ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in stages.items())


def answer_headers(answer: Answer) -> dict[str, str]:
    """X-Model, X-Predictor and Server-Timing of an answered request."""
    return {
        "X-Model": f"{answer.model}@{answer.version}",
        "X-Predictor": answer.group,
        "Server-Timing": server_timing(answer.stages),
    }

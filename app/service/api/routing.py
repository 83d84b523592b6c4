"""Model, instance group and deadline of a request: three query parameters of every task endpoint.

Reply headers name the model and the group that answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel, ConfigDict

from app.contracts.errors import InvalidParameter
from app.engine.dataplane import Answer
from app.settings.server import Settings

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


class Routing(BaseModel):
    """The three parameters; None if the request leaves one out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelParameter = None
    predictor: PredictorParameter = None
    timeout_ms: TimeoutParameter = None

    def options(self, settings: Settings, *, model: str | None = None) -> dict[str, Any]:
        """Arguments for DataPlane.run. Raises InvalidParameter.

        `model` overrides the parameter, for formats that name the model elsewhere.
        """
        name, version = split_model(model or self.model)
        return {
            "model": name,
            "version": version,
            "group": self.predictor,
            "timeout": timeout_seconds(self.timeout_ms, settings),
        }


ROUTING = tuple(Routing.model_fields)
"""Names of the parameters."""


async def _routing(
    model: ModelParameter = None,
    predictor: PredictorParameter = None,
    timeout_ms: TimeoutParameter = None,
) -> Routing:
    return Routing.model_construct(model=model, predictor=predictor, timeout_ms=timeout_ms)


RoutingDep = Annotated[Routing, Depends(_routing)]
"""For the signatures of task endpoints. TaskRoute reads the parameters without FastAPI."""


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
    """Split `u2netp@3` into name and version; without a version the registry chooses one.

    Raises InvalidParameter.
    """
    if model is None:
        return None, None
    name, at, version = model.partition("@")
    if not at:
        return name, None
    if not (version.isascii() and version.isdecimal() and len(version) <= 9):
        raise InvalidParameter("model is not `name` or `name@version` with an integer version")
    return name, int(version)


def server_timing(stages: Mapping[str, float]) -> str:
    """Build the W3C Server-Timing header; `stages` in seconds, the header in milliseconds."""
    return ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in stages.items())


def answer_headers(answer: Answer) -> dict[str, str]:
    """X-Model, X-Predictor and Server-Timing of an answered request."""
    return {
        "X-Model": f"{answer.model}@{answer.version}",
        "X-Predictor": answer.group,
        "Server-Timing": server_timing(answer.stages),
    }

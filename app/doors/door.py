"""What a door declares about itself, and what a request to any of them may say in the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends

from app.api.problems import ErrorForm
from app.api.replies import (
    ModelParameter,
    PredictorParameter,
    TimeoutParameter,
    split_model,
    timeout_seconds,
)
from app.api.services import ServicesDep
from app.settings import Settings

TAG = "compatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One format in front of one task. Several of one name are switched together.

    `routes` is called once at start. Where a client is known by `agents`, parts of its User-Agent,
    `paths` lead it from paths that have another form to the door's own.
    """

    name: str
    task: str
    routes: Callable[[Settings], APIRouter]
    errors: ErrorForm
    headers: tuple[str, ...] = ()
    """Its own reply headers: pages of PADDLEPOOL_CORS_ORIGINS may read them."""
    agents: tuple[bytes, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)


class Query(Protocol):
    """What of it a door to texts needs, however it was read (app.api.direct)."""

    @property
    def model(self) -> str | None: ...

    @property
    def predictor(self) -> str | None: ...

    @property
    def timeout_ms(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which model and instance group are asked and for how long: of our own, in the query, since
    the formats have no words for it."""

    model: str | None
    predictor: str | None
    timeout_ms: int | None

    def options(self, settings: Settings, *, model: str | None = None) -> dict[str, Any]:
        """For DataPlane.run; `model` is what the format itself names. Raises InvalidParameter."""
        name, version = split_model(model or self.model)
        return {
            "model": name,
            "version": version,
            "group": self.predictor,
            "timeout": timeout_seconds(self.timeout_ms, settings),
        }


async def _routing(
    services: ServicesDep,
    model: ModelParameter = None,
    predictor: PredictorParameter = None,
    timeout_ms: TimeoutParameter = None,
) -> Routing:
    timeout_seconds(timeout_ms, services.settings)  # refused before the body is read
    return Routing(model=model, predictor=predictor, timeout_ms=timeout_ms)


RoutingDep = Annotated[Routing, Depends(_routing)]

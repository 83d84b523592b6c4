"""What an endpoint may use: one frozen value on `app.state`, handed out by one dependency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from app.contracts.task_tensors import TaskTensors
from app.dataplane import DataPlane
from app.engine.registry.registry import ModelRegistry
from app.observability.metrics import Metrics
from app.settings import Settings


@dataclass(slots=True)
class Lifecycle:
    """Where the process is in its life. A signal handler sets `draining`, so it needs no lock."""

    draining: bool = False

    def drain(self) -> None:
        self.draining = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Built once by `create_app`; lives as long as the application."""

    settings: Settings
    registry: ModelRegistry
    dataplane: DataPlane
    metrics: Metrics
    lifecycle: Lifecycle
    default_models: Mapping[str, str]
    task_tensors: Mapping[str, TaskTensors] = field(default_factory=dict)
    """Tasks that answer under /v2 as models, by their names there."""
    confinement: Callable[[], Mapping[str, Sequence[str]]] = dict
    """What keeps codec and predictor processes from the rest of the system."""
    operations: Executor
    """Runs what operators ask for and what may block for some milliseconds: scrapes, /info, large
    JSON."""


async def _services(request: Request) -> Services:
    # async: FastAPI would run a plain function in a thread, at every request.
    return cast(Services, request.app.state.paddlepool)


ServicesDep = Annotated[Services, Depends(_services)]

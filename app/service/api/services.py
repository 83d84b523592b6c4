"""Everything an endpoint may use: one frozen value on `app.state`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from app.contracts.task_tensors import TaskTensors
from app.engine.dataplane import DataPlane
from app.engine.registry.registry import ModelRegistry
from app.observability.metrics import Metrics
from app.settings.server import Settings

if TYPE_CHECKING:  # an extra that most servers do without
    from app.observability.tracing import Tracing


@dataclass(slots=True)
class Lifecycle:
    """The phase of the process. A signal handler sets `draining`, so it needs no lock.

    `doors` are closed beside HTTP's own when the drain delay is over: each takes no new requests
    then, and returns when those in flight have ended or their time is up.
    """

    draining: bool = False
    accepts_when_ready: bool = False
    """Leaves connections to whoever else has the listening socket until every model answers."""
    doors: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def drain(self) -> None:
        self.draining = True

    async def close_doors(self) -> None:
        await asyncio.gather(*(close() for close in self.doors))


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
    """The confinement in force, by kind of child process."""
    tracing: Tracing | None = None
    operations: Executor
    """Runs what operators ask for and what may block for some milliseconds: scrapes, /info, large
    JSON."""


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.paddlepool)


async def _services(request: Request) -> Services:
    # async: FastAPI would run a plain function in a thread, at every request.
    return services_of(request)


ServicesDep = Annotated[Services, Depends(_services)]

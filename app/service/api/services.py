"""The services that endpoints may use: one frozen value on `app.state`."""

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

if TYPE_CHECKING:  # an optional extra
    from app.observability.tracing import Tracing


@dataclass(slots=True)
class Lifecycle:
    """The phase of the process. A signal handler sets `draining`, a plain value without a lock.

    Each of `doors` closes one interface other than HTTP. They are called when the drain delay is
    over: each stops accepting requests, and returns when the requests in flight have ended or the
    drain timeout is over.
    """

    draining: bool = False
    accepts_when_ready: bool = False
    """Accept no connections until every model is ready; other processes that share the listening
    socket accept them."""
    doors: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def drain(self) -> None:
        self.draining = True

    async def close_doors(self) -> None:
        await asyncio.gather(*(close() for close in self.doors))


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The application's services, built once by `create_app`."""

    settings: Settings
    registry: ModelRegistry
    dataplane: DataPlane
    metrics: Metrics
    lifecycle: Lifecycle
    default_models: Mapping[str, str]
    task_tensors: Mapping[str, TaskTensors] = field(default_factory=dict)
    """Tasks that answer as models under /v2, by name."""
    confinement: Callable[[], Mapping[str, Sequence[str]]] = dict
    """The active confinement mechanisms by kind of child process."""
    tracing: Tracing | None = None
    operations: Executor
    """Runs operators' requests and what may block for milliseconds: /info, /compare/data, large
    JSON."""


def services_of(request: Request) -> Services:
    return cast(Services, request.app.state.paddlepool)


async def _services(request: Request) -> Services:
    # FastAPI would run a plain function in a thread for every request.
    return services_of(request)


ServicesDep = Annotated[Services, Depends(_services)]

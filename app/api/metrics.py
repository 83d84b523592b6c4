"""GET /metrics: the exposition for Prometheus, and the engine's state that it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.services import ServicesDep
from app.engine.registry.registry import ModelRegistry
from app.observability.gauges import ModelGauges

Names = tuple[str, ...]
Exposition = tuple[bytes, str]


class Scrapes:
    """Renders once for all requests that wait for the same, and one rendering at a time: each costs
    milliseconds of the event loop's processor, and the endpoint may need no key."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._next: dict[tuple[str, Names], asyncio.Task[Exposition]] = {}

    async def exposition(
        self, render: Callable[[str, Names], Exposition], accept: str, names: Names
    ) -> Exposition:
        """What `render` returns for an Accept header and the names of series."""
        key = (accept, names)
        if key not in self._next:
            self._next[key] = asyncio.create_task(self._make(render, key))
        return await asyncio.shield(self._next[key])

    async def _make(
        self, render: Callable[[str, Names], Exposition], key: tuple[str, Names]
    ) -> Exposition:
        async with self._one:
            del self._next[key]
            return await asyncio.to_thread(render, *key)


def router() -> APIRouter:
    """The scrape endpoint."""
    scrapes = Scrapes()

    async def metrics(
        request: Request,
        services: ServicesDep,
        names: Annotated[
            list[str] | None,
            Query(alias="name[]", description="Only the series with these names."),
        ] = None,
    ) -> Response:
        """Every metric family; see docs/metrics.md. OpenMetrics where `Accept` asks for it."""
        accept = ",".join(request.headers.getlist("accept"))
        text, content_type = await scrapes.exposition(
            services.metrics.render, accept, tuple(names or ())
        )
        return Response(text, headers={"Content-Type": content_type})

    routes = APIRouter(tags=["operations"])
    routes.add_api_route(
        "/metrics",
        metrics,
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
    )
    return routes


def read_gauges(registry: ModelRegistry) -> list[ModelGauges]:
    """The engine at this moment. A model that serves nothing is not ready, under its newest version
    or under 0 where it has none."""
    gauges = [
        ModelGauges(
            model=model.name,
            version=model.version,
            ready=model.ready(),
            default_group=model.config.default_group,
            chosen_by=model.choice.by,
            groups=model.groups(),
        )
        for model in registry.served()
    ]
    missing = set(registry.wanted()) - {gauge.model for gauge in gauges}
    newest = {status.name: status.version or 0 for status in reversed(registry.index())}
    gauges += [
        ModelGauges(model=name, version=newest.get(name, 0), ready=False)
        for name in sorted(missing)
    ]
    return gauges

"""GET /metrics: the exposition text for Prometheus, and the engine's state that it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

from app.api.services import ServicesDep
from app.engine.registry.registry import ModelRegistry
from app.observability.gauges import ModelGauges


class Scrapes:
    """Renders the text once for all requests that wait for it, one rendering at a time: it takes a
    fifth of a second, and the endpoint may need no key."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._next: asyncio.Task[bytes] | None = None

    async def text(self, render: Callable[[], bytes]) -> bytes:
        if self._next is None:
            self._next = asyncio.create_task(self._make(render))
        return await asyncio.shield(self._next)

    async def _make(self, render: Callable[[], bytes]) -> bytes:
        async with self._one:
            self._next = None
            return await asyncio.to_thread(render)


def router() -> APIRouter:
    """The scrape endpoint."""
    scrapes = Scrapes()

    async def metrics(services: ServicesDep) -> Response:
        """Every metric family; see docs/metrics.md."""
        return Response(
            await scrapes.text(services.metrics.render),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    routes = APIRouter(tags=["operations"])
    routes.add_api_route(
        "/metrics",
        metrics,
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
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

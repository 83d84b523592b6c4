"""GET /metrics: the Prometheus exposition, and the engine's state that it includes."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.engine.registry.registry import ModelRegistry
from app.observability.gauges import ModelGauges
from app.service.api.services import ServicesDep


def router() -> APIRouter:
    """Build the route that Prometheus scrapes."""

    async def metrics(
        request: Request,
        services: ServicesDep,
        names: Annotated[
            list[str] | None,
            Query(alias="name[]", description="Only the series with these names."),
        ] = None,
    ) -> Response:
        """Every metric family; see docs/metrics.md. OpenMetrics if `Accept` asks for it."""
        accept = ",".join(request.headers.getlist("accept"))
        render = services.metrics.render
        text, content_type = await asyncio.to_thread(render, accept, names or ())
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
    """Read the engine's current state.

    A model without a served version counts as not ready, under its newest version or 0 if it has
    none.
    """
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

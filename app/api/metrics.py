"""GET /metrics: the exposition text for Prometheus."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from app.api.services import ServicesDep


def router() -> APIRouter:
    """The scrape endpoint."""
    routes = APIRouter(tags=["operations"])
    routes.add_api_route(
        "/metrics",
        metrics,
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    return routes


async def metrics(services: ServicesDep) -> Response:
    """Every metric family; see docs/metrics.md."""
    loop = asyncio.get_running_loop()
    text = await loop.run_in_executor(services.operations, services.metrics.render)
    return Response(
        text,
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )

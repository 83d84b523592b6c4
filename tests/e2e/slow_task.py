"""A task whose requests take as long as they say, so that tests can be in the middle of one."""

import asyncio

from fastapi import APIRouter, Request, Response

from paddlepool.contracts.ports import Pipeline, ServedModelInfo
from paddlepool.settings.server import Settings
from paddlepool.tasks.task import Task, Workers

COUNTS = {"started": 0, "cancelled": 0, "answered": 0}


def endpoints(settings: Settings) -> APIRouter:
    del settings
    routes = APIRouter()
    routes.add_api_route("/slow", slow, methods=["POST"])
    routes.add_api_route("/slow/counts", counts)
    routes.add_api_route("/slow/large", large)
    return routes


async def slow(request: Request, seconds: float) -> dict[str, int]:
    """Reads the body, then takes its time."""
    size = len(await request.body())
    COUNTS["started"] += 1
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        COUNTS["cancelled"] += 1
        raise
    COUNTS["answered"] += 1
    return {"bytes": size}


async def counts() -> dict[str, int]:
    return COUNTS


async def large(size: int) -> Response:
    """More than the system's own buffers take."""
    return Response(bytes(size))


def build(info: ServedModelInfo, workers: Workers) -> Pipeline:
    """No model has this task."""
    raise NotImplementedError


TASK = Task(build=build, endpoints=endpoints)

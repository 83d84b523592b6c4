"""GET …/stats: statistics of each served version, in the form that Triton's tools read."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from app.engine.pool.statistics import Duration, Stages
from app.engine.registry.model import ServedModel
from app.service.api.problems import documented
from app.service.api.services import Services, ServicesDep
from app.service.api.v2.metadata import add_by_version
from app.service.api.v2.tasks import VERSION, check_version, model_of, task_named


def router() -> APIRouter:
    """Build the routes. Mount them before those of one model, where `stats` would be a name."""
    routes = APIRouter(tags=["v2"])
    routes.add_api_route("/v2/models/stats", all_stats, operation_id="statistics")
    unready = documented(404, 503, protocol=True)
    add_by_version(
        routes, "/stats", stats, version_stats, operation="Statistics", responses=unready
    )
    return routes


async def all_stats(services: ServicesDep) -> dict[str, Any]:
    """Statistics of all served models."""
    return {"model_stats": [model_stats(served) for served in services.registry.served()]}


async def stats(model: str, services: ServicesDep) -> dict[str, Any]:
    """Statistics of every served version of the model, newest first; a task has its model's."""
    found = [served for served in services.registry.served() if served.name == model]
    return (
        {"model_stats": [model_stats(each) for each in found]} if found else _one(services, model)
    )


async def version_stats(model: str, version: int, services: ServicesDep) -> dict[str, Any]:
    """Statistics of one version."""
    return _one(services, model, version)


def _one(services: Services, model: str, version: int | None = None) -> dict[str, Any]:
    if task_named(services, model) is not None:
        check_version(version)
        with services.registry.lease(model_of(services, model)) as served:
            own = {"name": model, "version": str(VERSION)}
            return {"model_stats": [model_stats(served) | own]}
    with services.registry.lease(model, version) as served:
        return {"model_stats": [model_stats(served)]}


def model_stats(served: ServedModel) -> dict[str, Any]:
    """Statistics since the version was loaded.

    Durations are in nanoseconds, `last_inference` in milliseconds since 1970 (0: never).
    """
    counted = served.statistics()
    ended = counted.last_ended
    last = 0 if ended is None else round(1000 * (time.time() - (time.monotonic() - ended)))
    return {
        "name": served.name,
        "version": str(served.version),
        "last_inference": last,
        "inference_count": counted.rows,
        "execution_count": counted.executions,
        "inference_stats": {
            "success": _duration(counted.success),
            "fail": _duration(counted.failure),
            "queue": _duration(counted.queue),
            **_stages(counted.requests),
        },
        "batch_stats": [
            {"batch_size": rows, **_stages(stages)} for rows, stages in counted.batches.items()
        ],
    }


def _stages(stages: Stages) -> dict[str, Any]:
    return {
        "compute_input": _duration(stages.inputs),
        "compute_infer": _duration(stages.infer),
        "compute_output": _duration(stages.outputs),
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": round(duration.seconds * 1e9)}

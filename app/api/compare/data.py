"""GET /compare/data: the instance groups of every model, their numbers and the last hour's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.compare.figures import ComparedModel, Comparison, Shadowing, groups_of, history_of
from app.api.compare.figures import window_seconds as seconds_of
from app.api.info import ChoiceInfo, group_members, shown
from app.api.services import Services, ServicesDep
from app.contracts.errors import ModelNotFound, ModelNotReady
from app.contracts.ports import Clock
from app.contracts.status import CANNOT_START, ModelStatus
from app.engine.registry.model import ServedModel
from app.observability.history import INTERVAL_SECONDS

FRESH_SECONDS = 1.0
"""For so long the engine is not asked again, however many pages look: that reads /proc."""

WINDOWS = {"1m": 60.0, "10m": 600.0, "1h": 3600.0}


class EngineState:
    """The state of every model, read at most once a second; for one thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._read_at = float("-inf")
        self._state: list[Mapping[str, Any]] = []

    def read(self, services: Services) -> list[Mapping[str, Any]]:
        """The members of ComparedModel; of `groups` those that are no numbers of the window."""
        now = self._clock()
        if now - self._read_at >= FRESH_SECONDS:
            self._state = [_model(services, each) for each in shown(services.registry.index())]
            self._read_at = now
        return self._state


def router() -> APIRouter:
    state = EngineState()

    async def compare_data(
        services: ServicesDep,
        window: Annotated[
            Literal["1m", "10m", "1h"],
            Query(description="How far back the groups' numbers go."),
        ] = "10m",
        after: Annotated[
            int,
            Query(description="The history only after the interval of this number.", ge=-1),
        ] = -1,
    ) -> Response:
        """Instance groups compared live: times, drift, memory, proof, choice, the last hour.

        Buckets are those of /metrics; quantiles are estimated from them as PromQL's
        histogram_quantile does. When polling, pass `after`: the last interval you have.
        """
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(
            services.operations, _comparison, services, state, window, after
        )
        return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})

    routes = APIRouter(tags=["operations"])
    routes.add_api_route(
        "/compare/data", compare_data, operation_id="compareData", response_model=Comparison
    )
    return routes


def _comparison(services: Services, state: EngineState, window: str, after: int) -> str:
    history = services.metrics.history
    intervals = int(WINDOWS[window] / INTERVAL_SECONDS)
    now = time.time()
    return Comparison(
        now=round(now, 3),
        began=round(now - history.uptime(), 3),
        interval=history.interval(),
        interval_seconds=INTERVAL_SECONDS,
        window_seconds=round(seconds_of(history, intervals), 1),
        prove_groups=services.settings.prove_groups,
        bounds=list(history.seconds),
        models=[
            ComparedModel(
                **each
                | {
                    "groups": groups_of(
                        history, (each["name"], each["version"]), each["groups"], intervals
                    )
                }
            )
            for each in map(dict, state.read(services))
        ],
        history=history_of(history, after),
    ).model_dump_json()


def _model(services: Services, status: ModelStatus) -> Mapping[str, Any]:
    told = asdict(status) | {"reason": status.reason or None, "groups": []}
    with (
        contextlib.suppress(ModelNotFound, ModelNotReady),
        services.registry.lease(status.name, status.version) as served,
    ):
        told |= _served(services, served)
    return told


def _served(services: Services, served: ServedModel) -> dict[str, Any]:
    settings = services.settings
    configured = {group.name: group for group in served.config.instance_group}
    return {
        "task": served.config.pipeline,
        "choice": ChoiceInfo.model_validate(served.choice, from_attributes=True),
        "first": served.config.first_group,
        "precision": settings.precision,
        "shadowing": Shadowing(
            fraction=settings.shadow_fraction,
            groups=list(settings.shadow_groups),
            outcomes=services.metrics.shadow_outcomes(served.name),
        ),
        "groups": [
            group
            | {
                "start": configured[group["name"]].start,
                "base": served.config.base_of(group["name"]),
                "candidate": configured[group["name"]].candidate,
                "options": configured[group["name"]].options,
                "refused": _refusal(group),
            }
            for group in group_members(served)
        ],
    }


def _refusal(group: Mapping[str, Any]) -> str | None:
    known = not group["ready"] and group["reason"].startswith(CANNOT_START)
    return group["reason"] if known else None

"""GET /compare/data: all instance groups with their current numbers and the last hour's history."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from paddlepool.contracts.errors import CanaryConflict, ModelNotFound
from paddlepool.contracts.status import CANNOT_START, CanaryStatus, ModelStatus
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.model import ServedModel
from paddlepool.observability.history import (
    DRIFT,
    INTERVAL_SECONDS,
    RUN_SECONDS,
    Counts,
    History,
    Series,
)
from paddlepool.service.api import info
from paddlepool.service.api.services import Services, ServicesDep

ESTIMATED = "estimated from the buckets like PromQL's histogram_quantile, accurate to 15 %"


class Times(BaseModel):
    """Seconds of one predictor run, estimated from buckets; null: no run in the window."""

    p50: float | None = Field(description=f"Seconds, {ESTIMATED}.")
    p95: float | None
    p99: float | None


class Replays(BaseModel):
    """Requests that ran again on a group in the window, and how they agree with the answers.

    They are counted for all versions of the model together.
    """

    count: int
    same_bits: int = Field(description="Number of replays with identical outputs, bit by bit.")
    p50: float | None = Field(description="Largest absolute difference, estimated from buckets.")
    p99: float | None
    agreement: float | None = Field(
        description="Mean agreement by the task's measure, 0 to 1; null: nothing was measured."
    )


class ComparedGroup(info.GroupInfo):
    """An instance group with its activity in the window."""

    start: str = Field(description="`always`, or `on_demand`: when a request first uses it.")
    base: str | None = Field(
        description="The group with which its outputs and times are compared; null: it has none."
    )
    candidate: bool = Field(description="Whether it may be chosen as the default group.")
    options: dict[str, Any] = Field(description="Options of its backend in config.toml.")
    refused: str | None = Field(description="Why this machine cannot start it; null: not known.")
    queue_depth: int
    inflight: int
    resident_bytes: int = Field(description="Memory of its processes; 0: none runs.")
    runs: int = Field(description="Predictor runs in the window, replays included.")
    rate: float = Field(description="Runs per second.")
    buckets: list[int] = Field(
        description="Runs in each bucket, not cumulative; the last bucket has no upper bound."
    )
    times: Times
    replays: Replays


class Shadowing(BaseModel):
    """Answered requests that run again on other groups while the server is idle."""

    fraction: float = Field(description="Share of the requests; 0: shadowing is off.")
    groups: list[str] = Field(description="Groups for these runs; empty: all that are started.")
    outcomes: dict[str, int] = Field(
        description="Number of the model's sampled requests since the start, by outcome."
    )


class ComparedModel(BaseModel):
    """One model version. While it is not served, it has no groups, and `reason` says why.

    A composed model has no groups either: its parts have them.
    """

    name: str
    version: int | None
    task: str | None = None
    state: str
    reason: str | None = None
    choice: info.ChoiceInfo | None = None
    first: str | None = Field(
        None,
        description="The group that serves first under `auto`; null: config.toml names a default.",
    )
    precision: str = Field("auto", description="`exact`: no lower precision is chosen.")
    shadowing: Shadowing | None = None
    groups: list[ComparedGroup] = []
    parts: dict[str, str] | None = Field(
        None, description="The parts of a composed model, each `name@version`; null: not composed."
    )
    canary: CanaryStatus | None = Field(
        None, description="The trial of the latest new version; null: there was none."
    )


class HistorySeries(BaseModel):
    """The intervals in which one group ran, as columns of equal length."""

    model: str
    version: int
    group: str
    interval: list[int] = Field(description="Number of each interval; 0 is the server's first.")
    runs: list[int]
    p50: list[float]
    p95: list[float]
    p99: list[float]


class Comparison(BaseModel):
    """A comparison of instance groups in a window, and their history of the last hour."""

    now: float = Field(description="Seconds since 1970, by the server's clock.")
    began: float = Field(description="When the server began to count.")
    interval: int = Field(description="Number of the current interval; 0 is the first.")
    interval_seconds: float
    window_seconds: float = Field(
        description="Length of the window, which ends now and begins at the server's start at the"
        " earliest."
    )
    processor: info.ProcessorInfo
    prove_groups: str = Field(description="The setting; off: nothing is measured or chosen.")
    bounds: list[float] = Field(description="The buckets' upper bounds in seconds, as in /metrics.")
    models: list[ComparedModel]
    history: list[HistorySeries]


SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def estimated(
    bounds: Sequence[float], counts: Counts, *names: str
) -> dict[str, float] | dict[str, None]:
    """Estimate the quantiles with these `names`, such as p50; each is None if nothing was counted.

    They have four digits: the buckets allow no more precision, and longer numbers would make the
    reply half as long again.
    """
    values = counts.quantiles(bounds, [SHARES[name] for name in names])
    if not values:
        return dict.fromkeys(names)
    return {name: significant(value) for name, value in zip(names, values, strict=True)}


def significant(value: float) -> float:
    return float(f"{value:.4g}")


def window_seconds(history: History, intervals: int) -> float:
    """Return the seconds of a window: `intervals` intervals, the last one only up to now.

    It is shorter if the server started later than such a window begins, and never 0.
    """
    uptime = history.uptime()
    begins = max(0.0, (int(uptime / INTERVAL_SECONDS) + 1 - intervals) * INTERVAL_SECONDS)
    return max(uptime - begins, 0.001)


def history_of(history: History, after: int) -> list[HistorySeries]:
    """Return, for each group, the finished intervals in which it ran and which follow `after`.

    `after` is the number of an interval. Intervals before the last hour are left out.
    """
    columns = []
    for series, intervals in sorted(history.runs(after).items()):
        times = [estimated(RUN_SECONDS, counts, *SHARES) for _, counts in intervals]
        quantiles: dict[str, Any] = {name: [row[name] for row in times] for name in SHARES}
        numbers = [number for number, _ in intervals]
        runs = [counts.count for _, counts in intervals]
        columns.append(HistorySeries(**series._asdict(), interval=numbers, runs=runs, **quantiles))
    return columns


WINDOWS = {"1m": 60.0, "10m": 600.0, "1h": 3600.0}


def router() -> APIRouter:
    routes = APIRouter(tags=["operations"])
    routes.add_api_route(
        "/compare/data", compare_data, operation_id="compareData", response_model=Comparison
    )
    return routes


async def compare_data(
    services: ServicesDep,
    window: Annotated[
        Literal["1m", "10m", "1h"], Query(description="Window of the groups' numbers.")
    ] = "10m",
    after: Annotated[
        int, Query(description="Only the history after the interval with this number.", ge=-1)
    ] = -1,
) -> Response:
    """Compare instance groups live: times, drift, memory, proof, choice, the last hour.

    Buckets are those of /metrics. Quantiles are estimated from them like PromQL's
    histogram_quantile does. `history` has finished intervals only: when
    polling, pass `interval - 1` of the previous reply as `after`.
    """
    loop = asyncio.get_running_loop()
    text = await loop.run_in_executor(services.operations, _comparison, services, window, after)
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _comparison(services: Services, window: str, after: int) -> str:
    history = services.metrics.history
    intervals = int(WINDOWS[window] / INTERVAL_SECONDS)
    shown = info.shown(services.registry.index())
    now = time.time()
    return Comparison(
        now=round(now, 3),
        began=round(now - history.uptime(), 3),
        interval=history.interval(),
        interval_seconds=INTERVAL_SECONDS,
        window_seconds=round(window_seconds(history, intervals), 1),
        processor=info.processor_info(),
        prove_groups=services.settings.prove_groups,
        bounds=list(RUN_SECONDS),
        models=[_model(services, status, intervals) for status in shown],
        history=history_of(history, after),
    ).model_dump_json()


def _model(services: Services, status: ModelStatus, intervals: int) -> ComparedModel:
    known = asdict(status) | {"reason": status.reason or None}
    served = services.registry.find(status.name, status.version)
    if served is None:
        return ComparedModel(**known)
    if isinstance(served, ComposedModel):
        return ComparedModel(
            **known,
            task=served.config.pipeline,
            parts=info.part_names(served),
            canary=_canary(services, served.name),
        )
    settings, metrics, groups = services.settings, services.metrics, info.group_members(served)
    return ComparedModel(
        **known,
        task=served.config.pipeline,
        choice=info.ChoiceInfo.model_validate(served.choice, from_attributes=True),
        first=served.config.first_group,
        precision=settings.precision,
        shadowing=Shadowing(
            fraction=settings.shadow_fraction,
            groups=list(settings.shadow_groups),
            outcomes=metrics.shadow_outcomes(served.name),
        ),
        groups=[_group(metrics.history, served, group, intervals) for group in groups],
        canary=_canary(services, served.name),
    )


def _canary(services: Services, name: str) -> CanaryStatus | None:
    try:
        status = services.canaries.status(name)
    except (CanaryConflict, ModelNotFound):
        return None
    return None if status.version is None else status


def _group(
    history: History, served: ServedModel, members: Mapping[str, Any], intervals: int
) -> ComparedGroup:
    """Return one group with its numbers for the last `intervals`; `members` describe its state."""
    name = members["name"]
    configured = served.config.group(name)
    series = Series(served.name, served.version, name)
    runs, drift, agreements = history.window(series, intervals)
    agreement = agreements.mean()
    refused = not members["ready"] and members["reason"].startswith(CANNOT_START)
    return ComparedGroup(
        **members,
        start=configured.start,
        base=served.config.base_of(name),
        candidate=configured.candidate,
        options=configured.options,
        refused=members["reason"] if refused else None,
        runs=runs.count,
        rate=round(runs.count / window_seconds(history, intervals), 3),
        buckets=list(runs.buckets),
        times=Times.model_validate(estimated(RUN_SECONDS, runs, *SHARES)),
        replays=Replays(
            count=drift.count,
            same_bits=drift.buckets[0],
            agreement=None if agreement is None else significant(agreement),
            **estimated(DRIFT, drift, "p50", "p99"),
        ),
    )

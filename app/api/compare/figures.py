"""The reply of /compare/data: its shape, and its numbers from the counts of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from app.api.info import ChoiceInfo, GroupInfo
from app.observability.history import INTERVAL_SECONDS, Counts, History, Series, Window, quantiles

ESTIMATED = "estimated from the buckets as PromQL's histogram_quantile does, right to 15 %"


class Times(BaseModel):
    """Times of one predictor run in seconds, estimated from buckets; null: none in the window."""

    p50: float | None = Field(description=f"Seconds, {ESTIMATED}.")
    p95: float | None
    p99: float | None


class Replays(BaseModel):
    """Shadowed requests of a group in the window, against the answers of the default group."""

    count: int
    same_bits: int = Field(description="Those whose outputs were the same bit by bit.")
    p50: float | None = Field(description="Largest absolute difference, estimated from buckets.")
    p99: float | None
    agreement: float | None = Field(
        description="Mean overlap of the masks, or share of equal labels; null: not judged."
    )


class ComparedGroup(GroupInfo):
    """An instance group and what it did in the window."""

    start: str = Field(description="always, or on_demand: with the first request that names it.")
    base: str | None = Field(description="The group it is proven against; null: it has none.")
    candidate: bool = Field(description="Whether it may be chosen as the default group.")
    options: dict[str, Any] = Field(description="What config.toml sets for its backend.")
    refused: str | None = Field(description="Why this machine cannot start it; null: not known.")
    queue_depth: int
    inflight: int
    resident_bytes: int = Field(description="Memory of its processes; 0: none runs.")
    runs: int = Field(description="Predictor runs in the window, replays included.")
    rate: float = Field(description="Such runs a second.")
    buckets: list[int] = Field(
        description="Runs in each bucket, not cumulative; the last is above every bound."
    )
    times: Times
    ratio: Times = Field(description="Its times over those of the default group.")
    replays: Replays


class Shadowing(BaseModel):
    """Answered requests that are run again on other groups in idle moments."""

    fraction: float = Field(description="Share of the requests; 0: shadowing is off.")
    groups: list[str] = Field(description="Groups they are run on; none: all that are started.")
    outcomes: dict[str, int] = Field(description="Sampled requests since the start.")


class ComparedModel(BaseModel):
    """One model version. Without groups it is not ready, and `reason` says why."""

    name: str
    version: int | None
    task: str | None = None
    state: str
    reason: str | None = None
    choice: ChoiceInfo | None = None
    first: str | None = Field(
        None, description="The group that `auto` begins with; null: config.toml names the default."
    )
    precision: str = Field("auto", description="`exact`: no lower precision is chosen.")
    shadowing: Shadowing | None = None
    groups: list[ComparedGroup] = []


class HistorySeries(BaseModel):
    """One group's intervals in which it ran, as columns of equal length."""

    model: str
    version: int
    group: str
    interval: list[int] = Field(description="Its number since the server's start.")
    runs: list[int]
    p50: list[float]
    p95: list[float]
    p99: list[float]


class Comparison(BaseModel):
    """Instance groups compared now and in the last hour."""

    now: float = Field(description="Seconds since 1970, by the server's clock.")
    began: float = Field(description="When the server began to count.")
    interval: int = Field(description="Number of the interval that is not over; 0 is the first.")
    interval_seconds: float
    window_seconds: float = Field(description="What the groups' numbers cover, up to now.")
    prove_groups: str = Field(description="The setting; off: nothing is measured or chosen.")
    bounds: list[float] = Field(
        description="Upper bounds of the buckets in seconds, those of /metrics."
    )
    models: list[ComparedModel]
    history: list[HistorySeries]


SHARES = (0.5, 0.95, 0.99)


def significant(value: float) -> float:
    """Four digits: a bucket says no more, and the reply is a third shorter."""
    return float(f"{value:.4g}")


def times_of(bounds: Sequence[float], runs: Counts) -> Times:
    found = quantiles(bounds, runs.buckets, SHARES)
    p50, p95, p99 = map(significant, found) if found else (None,) * 3
    return Times(p50=p50, p95=p95, p99=p99)


def ratio_of(times: Times, default: Times) -> Times:
    """Null where one of the two has not run."""
    ratios = {
        name: significant(value / base) if value and (base := getattr(default, name)) else None
        for name, value in times
    }
    return Times(**ratios)


def replays_of(history: History, window: Window) -> Replays:
    drift, agreement = window.drift, window.agreement.mean()
    found = quantiles(history.drift, drift.buckets, (0.5, 0.99))
    p50, p99 = map(significant, found) if found else (None, None)
    return Replays(
        count=drift.count,
        same_bits=drift.buckets[0],
        p50=p50,
        p99=p99,
        agreement=None if agreement is None else significant(agreement),
    )


def groups_of(
    history: History,
    model: tuple[str, int],
    groups: Sequence[Mapping[str, Any]],
    intervals: int,
) -> list[ComparedGroup]:
    """The groups of one model version, with their numbers of the last `intervals`."""
    seconds = window_seconds(history, intervals)
    windows = {
        group["name"]: history.window(Series(*model, group["name"]), intervals) for group in groups
    }
    times = {name: times_of(history.seconds, window.runs) for name, window in windows.items()}
    default = next((times[group["name"]] for group in groups if group["default"]), None)
    nothing = Times(p50=None, p95=None, p99=None)
    return [
        ComparedGroup(
            **group,
            runs=windows[name].runs.count,
            rate=round(windows[name].runs.count / seconds, 3),
            buckets=list(windows[name].runs.buckets),
            times=times[name],
            ratio=ratio_of(times[name], default or nothing),
            replays=replays_of(history, windows[name]),
        )
        for group in groups
        for name in (group["name"],)
    ]


def window_seconds(history: History, intervals: int) -> float:
    """From the start of the first interval of the window, or of the server, to now."""
    uptime = history.uptime()
    begins = max(0.0, (int(uptime / INTERVAL_SECONDS) + 1 - intervals) * INTERVAL_SECONDS)
    return max(uptime - begins, 0.001)


def history_of(history: History, after: int) -> list[HistorySeries]:
    """Every group's intervals after that one, for a chart of the last hour."""
    told = []
    for series, intervals in sorted(history.runs(after).items()):
        times = [quantiles(history.seconds, each.buckets, SHARES) or () for _, each in intervals]
        p50, p95, p99 = (list(map(significant, column)) for column in zip(*times, strict=True))
        told.append(
            HistorySeries(
                model=series.model,
                version=series.version,
                group=series.group,
                interval=[number for number, _ in intervals],
                runs=[counts.count for _, counts in intervals],
                p50=p50,
                p95=p95,
                p99=p99,
            )
        )
    return told

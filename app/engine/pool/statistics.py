"""Counters of a served version since it was loaded: requests, runs and their times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Duration:
    """Count and total seconds of an operation."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Seconds of one predictor run: joining the inputs, the run itself, dividing the outputs."""

    inputs: float
    infer: float
    outputs: float


@dataclass(slots=True, kw_only=True)
class Stages:
    """The three parts of a run, each with its own count."""

    inputs: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)
    outputs: Duration = field(default_factory=Duration)

    def add(self, times: RunTimes, count: int = 1) -> None:
        self.inputs.add(times.inputs * count, count)
        self.infer.add(times.infer * count, count)
        self.outputs.add(times.outputs * count, count)

    def copy(self) -> Stages:
        return Stages(
            inputs=replace(self.inputs), infer=replace(self.infer), outputs=replace(self.outputs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The counters at one moment. `rows` are inferences, `executions` are predictor runs.

    `success`, `failure` and `queue` count requests. `requests` adds the times of a run once for
    each request in it; `batches` adds them once for each run, keyed by its number of rows.
    """

    rows: int
    executions: int
    success: Duration
    failure: Duration
    queue: Duration
    requests: Stages
    batches: Mapping[int, Stages]
    last_ended: float | None


class Statistics:
    """Counts requests and runs. Times are in seconds; `ended` is a value of the engine's clock.

    snapshot() may be called in any thread.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._executions = 0
        self._success, self._failure, self._queue = Duration(), Duration(), Duration()
        self._requests = Stages()
        self._batches: dict[int, Stages] = {}
        self._last_ended: float | None = None

    def executed(self, rows: int, times: RunTimes, *, ended: float) -> None:
        """Record a predictor run that ended."""
        self._executions += 1
        self._batches.setdefault(rows, Stages()).add(times)
        self._last_ended = ended

    def succeeded(self, rows: int, times: RunTimes, *, queued: float, total: float) -> None:
        """Record a request of `rows` rows, answered `total` seconds after it was queued."""
        self._rows += rows
        self._success.add(total)
        self._queue.add(queued)
        self._requests.add(times)

    def failed(self, total: float) -> None:
        """Record a valid request that ended in an error after `total` seconds."""
        self._failure.add(total)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            rows=self._rows,
            executions=self._executions,
            success=replace(self._success),
            failure=replace(self._failure),
            queue=replace(self._queue),
            requests=self._requests.copy(),
            batches={rows: stages.copy() for rows, stages in sorted(self._batches.items())},
            last_ended=self._last_ended,
        )

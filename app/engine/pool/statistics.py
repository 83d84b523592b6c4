"""Counters of a served version since it was loaded: jobs, runs and their times."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Duration:
    """Count and total seconds of an operation."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


Times = tuple[float, float, float]
"""Seconds of one predictor run: joining the inputs, the run itself, dividing the outputs."""


@dataclass(slots=True, kw_only=True)
class Stages:
    """The three parts of a run, each with its own count."""

    inputs: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)
    outputs: Duration = field(default_factory=Duration)

    def add(self, times: Times) -> None:
        for part, seconds in zip((self.inputs, self.infer, self.outputs), times, strict=True):
            part.add(seconds)


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Counts jobs, which Triton calls requests, and runs. Times are in seconds.

    `rows` counts rows of answered jobs, `executions` predictor runs; `success`, `failure` and
    `queue` count jobs. `requests` contains the times of a run once for each job in the run.
    `batches` contains them once for each run, keyed by the run's number of rows. `last_ended` is
    the end of the last run on the engine's clock.
    """

    rows: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    failure: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    requests: Stages = field(default_factory=Stages)
    batches: dict[int, Stages] = field(default_factory=lambda: defaultdict(Stages))
    last_ended: float | None = None

    def executed(self, rows: int, times: Times, *, ended: float) -> None:
        """Record a predictor run that ended."""
        self.executions += 1
        self.batches[rows].add(times)
        self.last_ended = ended

    def succeeded(self, rows: int, times: Times, *, queued: float, total: float) -> None:
        """Record a job of `rows` rows, answered `total` seconds after it was queued."""
        self.rows += rows
        self.success.add(total)
        self.queue.add(queued)
        self.requests.add(times)

    def snapshot(self) -> Statistics:
        """Return a copy, with batches by size; may be called in any thread."""
        # sorted() copies the sizes in one step. The event loop may add a size during deepcopy().
        return deepcopy(replace(self, batches=dict(sorted(self.batches.items()))))

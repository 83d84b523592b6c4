"""One job on its way to a process, and the batch in which jobs run together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.contracts.caller import CALLER
from app.contracts.errors import PaddlepoolError
from app.contracts.tensors import Array, Tensors

ShapeKey = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(slots=True, eq=False, kw_only=True, weakref_slot=True)
class Job:
    """Validated tensors that wait for a process; times are values of the engine's clock.

    The future may be settled from several sides (result, deadline, cancellation): the first wins.
    Who has a result claims the job, counts it and settles it, so that nothing is counted twice.
    """

    inputs: Tensors
    rows: int
    key: ShapeKey
    priority: int
    deadline: float
    enqueued: float
    caller: str = field(default_factory=lambda: CALLER.get().name)
    future: Future[Any] = field(default_factory=Future)  # typed by whoever made the job
    _claim: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> bool:
        """Enter a batch; from here the future cannot be cancelled. False: nobody waits for it."""
        try:
            return self.future.set_running_or_notify_cancel()
        except RuntimeError:  # CPython's own signal that it is settled already
            return False

    def claim(self) -> bool:
        """Whether the caller is the first, and must settle the future now."""
        return self._claim.acquire(blocking=False)

    def finish(self, result: object) -> None:
        """By whoever has claimed the job."""
        self.future.set_result(result)

    def fail(self, error: PaddlepoolError) -> None:
        """With a copy of the error, unless somebody was first or has cancelled the job."""
        if self.claim():
            with contextlib.suppress(InvalidStateError):
                self.future.set_exception(error.alone())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Batch:
    """Jobs of equal shape that have entered one run; `started` is a value of the clock."""

    jobs: Sequence[Job]
    started: float
    expected_seconds: float

    @property
    def key(self) -> ShapeKey:
        return self.jobs[0].key

    @property
    def rows(self) -> int:
        return sum(job.rows for job in self.jobs)

    @property
    def deadline(self) -> float:
        return max(job.deadline for job in self.jobs)

    def inputs(self) -> Tensors:
        if len(self.jobs) == 1:
            return self.jobs[0].inputs
        return {
            name: np.concatenate([job.inputs[name] for job in self.jobs])
            for name in self.jobs[0].inputs
        }

    def split(self, outputs: Tensors) -> list[Tensors]:
        """Each job's rows of the outputs, in the order of the jobs.

        Raises ValueError when an output has not one row for each row of the batch.
        """
        if len(self.jobs) == 1:
            return [outputs]
        for name, array in outputs.items():
            if not array.ndim or array.shape[0] != self.rows:
                raise ValueError(f"output {name} of shape {array.shape} for {self.rows} rows")
        parts: list[Tensors] = []
        offset = 0
        for job in self.jobs:
            rows = slice(offset, offset + job.rows)
            parts.append({name: array[rows] for name, array in outputs.items()})
            offset += job.rows
        return parts


def all_finite(outputs: Tensors) -> bool:
    """Whether every floating-point value is a number; an input's NaN never reaches a reply."""
    return all(_finite(array) for array in outputs.values())


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())

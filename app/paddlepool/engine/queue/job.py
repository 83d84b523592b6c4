"""One job for a process, and the batch in which jobs run together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.tensors import Tensors

INLINE_BYTES = 2 << 20
"""Requests and replies of more bytes are copied in a thread, to keep the event loop free."""

ShapeKey = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """Validated tensors that wait for a process; times are values of the engine's clock.

    A larger `priority` is less urgent. The future is completed by the first of these: a result, an
    error, the deadline or a cancellation.
    """

    inputs: Tensors
    rows: int
    key: ShapeKey
    priority: int
    deadline: float
    enqueued: float
    large: bool = False  # its request has more jobs than may be queued at a time
    caller: str = field(default_factory=lambda: CALLER.get().name)
    future: asyncio.Future[Any] = field(  # the creator knows its type
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def nbytes(self) -> int:
        return sum([array.nbytes for array in self.inputs.values()])

    def fail(self, error: PaddlepoolError) -> None:
        """Fail the future with a copy of the error, unless it is already done."""
        if not self.future.done():
            self.future.set_exception(error.without_traceback())


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """Jobs of equal shape that share one run; an instance got them at `started`."""

    jobs: Sequence[Job]
    started: float
    expected_seconds: float  # the usual duration of such a run, 0 if unknown
    rows: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.nbytes = 0
        for job in self.jobs:
            self.rows += job.rows
            self.nbytes += job.nbytes

    @property
    def key(self) -> ShapeKey:
        return self.jobs[0].key

    @property
    def deadline(self) -> float:
        return max(job.deadline for job in self.jobs)

    def inputs(self) -> Tensors:
        """Return the inputs of its jobs, joined along axis 0 in the order of the jobs."""
        if len(self.jobs) == 1:
            return self.jobs[0].inputs
        return {
            name: np.concatenate([job.inputs[name] for job in self.jobs])
            for name in self.jobs[0].inputs
        }

    def split(self, outputs: Tensors) -> list[Tensors]:
        """Return each job's rows of the outputs, in the order of the jobs.

        A single job gets all outputs unchecked. Otherwise raises ValueError unless each output has
        one row for each row of the batch.
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

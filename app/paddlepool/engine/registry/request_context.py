"""The view that one request has of its model version, or of the parts of a composed model."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from paddlepool.contracts.ports import WHOLE, InferResult, RequestContext
from paddlepool.contracts.reasons import START_UP
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.concurrency import in_thread_or_inline
from paddlepool.engine.queue.admission import Reservation
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.parts import CheckedJob, in_portions, joined

LARGE_TENSORS = 4 << 20
"""Tensors of more bytes, after padding, are checked and padded in a thread."""


class PartOfRequest(NamedTuple):
    """The model version that one request uses for a part, and the instance group."""

    served: ServedModel
    group: str


@dataclass(slots=True, kw_only=True)
class CompletedRuns:
    """The runs of a request on one part that have ended.

    `rows` and `results` have an entry for each run. The results have no outputs: a request may call
    infer() many times, so only one run, drawn at random, keeps its tensors as `inputs` and
    `outputs`.
    """

    rows: list[int] = field(default_factory=list)
    results: list[InferResult] = field(default_factory=list)
    inputs: Tensors = field(default_factory=dict)
    outputs: Tensors = field(default_factory=dict)

    def add(
        self,
        runs: Sequence[CheckedJob],
        results: Sequence[InferResult],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Add the runs of one infer(), and remove the outputs from their `results`.

        `draw` returns a random number from 0 to below 1.
        """
        self.rows += [run.rows for run in runs]
        self.results += results
        drawn = int(draw() * len(self.rows))
        if drawn < len(runs):
            self.inputs, self.outputs = runs[drawn].inputs, results[drawn].outputs
        for result in results:
            result.outputs = {}


@dataclass(slots=True, eq=False, kw_only=True)
class ModelContext(RequestContext):
    """Runs the jobs of one request on leased model versions and records their results.

    The first job takes the place of the `reservation`. The queue checks only deadlines if the
    request is `admitted` as a whole, or after the first infer() has returned. `started` has the
    parts that have got a job, and `completed` their runs that have ended. `calls` is the number of
    infer() under way, which share the places of one request in a queue.
    """

    parts: Mapping[str, PartOfRequest]
    priority: int = 0
    admitted: bool = False
    reservation: Reservation | None = field(default=None, init=False)
    started: set[str] = field(default_factory=set, init=False)
    completed: dict[str, CompletedRuns] = field(default_factory=dict, init=False)
    calls: int = field(default=0, init=False)

    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        served = self.parts[part].served
        check = partial(served.checked, jobs)
        if served.nbytes(jobs) <= LARGE_TENSORS:
            return await self.run(check(), part=part)
        return await self.run(await in_thread_or_inline("checking", check), part=part)

    async def run(self, jobs: Sequence[CheckedJob], *, part: str = WHOLE) -> list[Tensors]:
        """Run checked jobs and return their outputs, in order. Raises the errors of infer().

        Jobs run in parallel, so each stage gets the seconds of the job that was slowest in it.
        """
        if not jobs:
            return []
        served, group = self.parts[part]
        divided = [job.parts(served.max_rows) for job in jobs]
        runs = list(chain.from_iterable(divided))
        submit = partial(
            served.submit_all,
            deadline=self.deadline,
            group=group,
            priority=self.priority,
            reservation=self.reservation,
            following=self.admitted or bool(self.completed),
        )
        self.started.add(part)
        self.calls += 1
        try:
            portion = max(1, served.portion(group) // self.calls)
            results = await in_portions(runs, portion, submit)
        finally:
            self.calls -= 1
        outputs = [result.outputs for result in results]
        self.completed.setdefault(part, CompletedRuns()).add(runs, results)
        queue = max([result.queue_seconds for result in results])
        infer = max([result.infer_seconds for result in results])
        self.add_seconds({"queue": queue, "infer": infer})
        if part != WHOLE:
            self.add_seconds({f"{part}-queue": queue, f"{part}-infer": infer})
        if starting := max([result.start_up_seconds for result in results]):
            self.add_seconds({START_UP: starting})
        if len(outputs) == len(jobs):
            return outputs
        rest = iter(outputs)
        return [await joined(list(islice(rest, len(of_job)))) for of_job in divided]

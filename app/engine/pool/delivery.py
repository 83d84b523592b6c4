"""What becomes of a run: its times are counted, and each of its jobs is settled."""

from __future__ import annotations

from app.contracts.errors import ModelOutputInvalid
from app.contracts.ports import InferResult, Ran
from app.engine.pool.context import EngineContext
from app.engine.pool.instance import Run
from app.engine.pool.opening import Opening
from app.engine.pool.statistics import RunTimes, Statistics
from app.engine.queue.job import all_finite


class Delivery:
    """Of one group; called by the threads of its instances."""

    def __init__(
        self,
        *,
        model: str,
        version: int,
        group: str,
        opening: Opening,
        statistics: Statistics,
        context: EngineContext,
    ) -> None:
        self._model = model
        self._version = version
        self._group = group
        self._opening = opening
        self._statistics = statistics
        self._context = context

    def __call__(self, instance: int, run: Run, ran: Ran) -> None:
        """Give each job its rows. Raises ValueError when the outputs do not have its rows."""
        received, batch, infer = self._context.clock(), run.batch, ran.seconds
        parts = batch.split(ran.outputs)
        self._context.observer.batch_done(
            model=self._model,
            version=self._version,
            group=self._group,
            rows=batch.rows,
            seconds=infer,
        )
        finite = [all_finite(part) for part in parts]
        ended = self._context.clock()
        times = RunTimes(inputs=run.joining, infer=infer, outputs=ended - received)
        self._statistics.executed(batch.rows, times, ended=ended)
        for job, part, fit in zip(batch.jobs, parts, finite, strict=True):
            if not fit:
                job.fail(ModelOutputInvalid("the model's output contains NaN or infinity"))
                continue
            if not job.claim():
                continue  # its deadline was first, and counts as a failure
            queued = received - infer - run.joining - job.enqueued
            starting = self._opening.start_up_seconds(job.enqueued, job.enqueued + queued)
            self._statistics.succeeded(job.rows, times, queued=queued, total=ended - job.enqueued)
            job.finish(
                InferResult(
                    outputs=part,
                    model=self._model,
                    version=self._version,
                    group=self._group,
                    instance=instance,
                    enqueued=job.enqueued,
                    start_up_seconds=starting,
                    queue_seconds=queued - starting,
                    infer_seconds=infer,
                    batch_rows=batch.rows,
                )
            )

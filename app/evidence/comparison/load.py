"""Synthetic load on a model through the server's own engine, measured by the server's metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from app.contracts.ports import Agreement, PredictorFactory
from app.engine.pool.context import EngineContext
from app.engine.registry.model import ServedModel
from app.evidence.comparison.tasks import Sample
from app.evidence.comparison.tuning import Candidate, Outcome
from app.models.repository.config import DynamicBatching, Warmup
from app.models.repository.layout import ModelFiles
from app.observability.history import quantiles
from app.observability.metrics import Metrics

ROUTE = "/tune"
REQUEST_SECONDS = 120.0


def candidate_files(
    files: ModelFiles, candidate: Candidate, samples: Sequence[Sample]
) -> ModelFiles:
    """Return the version as `candidate` would serve it, with the default group only."""
    config = files.config
    group = config.group(config.default_group).model_copy(
        update={"count": candidate.count, "threads": candidate.threads, "start": "always"}
    )
    parameters = dict(config.parameters)
    if candidate.buckets:
        parameters["buckets"] = list(candidate.buckets)
    shapes = {tuple((name, a.shape) for name, a in inputs.items()) for _, inputs in samples}
    return replace(
        files,
        config=config.model_copy(
            update={
                "instance_group": (group,),
                "dynamic_batching": DynamicBatching(
                    max_batch_size=candidate.batch, max_queue_size=64
                ),
                "warmup": tuple(Warmup(shapes=dict(each)) for each in sorted(shapes)),
                "parameters": parameters,
            }
        ),
    )


@dataclass(slots=True)
class CandidateUnderLoad:
    """One candidate that is served under load. The caller must close it."""

    candidate: Candidate
    clients: int
    samples: Sequence[Sample]
    model: ServedModel
    metrics: Metrics
    seconds: float = 0.0
    _turn: int = field(default=0)

    async def run(self, seconds: float) -> None:
        """Keep every client busy for `seconds`, then finish the requests in progress."""
        ends = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < ends:
                self._turn += 1
                inputs = self.samples[self._turn % len(self.samples)][1]
                began = time.monotonic()
                await self.model.submit(inputs, deadline=began + REQUEST_SECONDS)
                self.metrics.request_done(
                    route=ROUTE, method="POST", status=200, seconds=time.monotonic() - began
                )

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(self.clients)))
        self.seconds += time.perf_counter() - began

    def outcome(self) -> Outcome:
        bounds, buckets = request_buckets(self.metrics)
        [p95_seconds] = quantiles(bounds, buckets, [0.95]) or [0.0]
        return Outcome(
            candidate=self.candidate,
            clients=self.clients,
            per_second=sum(buckets) / self.seconds,
            p95_seconds=p95_seconds,
            resident_bytes=sum(group.resident_bytes for group in self.model.groups()),
        )

    async def close(self) -> None:
        await self.model.close()


async def open_candidate(
    files: ModelFiles,
    candidate: Candidate,
    samples: Sequence[Sample],
    *,
    cores: int,
    open_predictor: PredictorFactory,
    agreement: Agreement | None = None,
) -> CandidateUnderLoad:
    """Start serving a candidate; returns when all predictors are warm. Raises BackendError.

    Every predictor has passed its self-test then.
    """
    metrics = Metrics(build={})
    metrics.expect_model(files.name, [files.config.default_group])
    metrics.expect_route(ROUTE)
    model = ServedModel(
        candidate_files(files, candidate, samples),
        context=EngineContext(
            open_predictor=open_predictor,
            observer=metrics,
            clock=time.monotonic,
            max_resident_bytes=1 << 40,
            agreement_of=lambda _info: agreement,
        ),
    )
    try:
        await model.start()
    except BaseException:
        await model.close()
        raise
    clients = max(cores, candidate.count * candidate.batch)
    return CandidateUnderLoad(
        candidate=candidate, clients=clients, samples=samples, model=model, metrics=metrics
    )


def request_buckets(metrics: Metrics) -> tuple[list[float], list[int]]:
    """Return the bounds of the request histogram and the number of requests in each bucket."""
    below = sorted(
        (float(point.labels["le"]), int(point.value))
        for family in metrics.registry.collect()
        if family.name == "paddlepool_request_duration_seconds"
        for point in family.samples
        if point.name.endswith("_bucket") and point.labels["route"] == ROUTE
    )
    bounds, counts = zip(*below, strict=True)
    return list(bounds[:-1]), [after - before for before, after in pairwise((0, *counts))]

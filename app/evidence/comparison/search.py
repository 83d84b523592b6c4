"""The search of `paddlepool tune`: threads and predictors first, then batches, then buckets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from app.contracts.ports import Agreement, PredictorFactory
from app.contracts.resources import available_memory
from app.engine.pool.context import EngineContext
from app.engine.registry.model import ServedModel
from app.evidence.comparison.measure import ComparisonOf, Sample, choose_samples, golden_test
from app.evidence.comparison.tuning import (
    Candidate,
    Outcome,
    batch_candidates,
    bucket_candidates,
    choose,
    thread_candidates,
)
from app.models.repository.config import DynamicBatching, Warmup
from app.models.repository.layout import ModelFiles
from app.observability.history import quantiles
from app.observability.metrics import Metrics

ROUTE = "/tune"
REQUEST_SECONDS = 120.0


def candidate_files(
    files: ModelFiles, candidate: Candidate, samples: Sequence[Sample]
) -> ModelFiles:
    """The version as `candidate` would serve it, with the default group only."""
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
    candidate: Candidate
    clients: int
    samples: Sequence[Sample]
    model: ServedModel
    metrics: Metrics
    seconds: float = 0.0
    _turn: int = field(default=0)

    async def run(self, seconds: float) -> None:
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
    """Start serving a candidate; every predictor is warm and has passed its self-test then."""
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
    """The bounds of the request histogram and the number of requests in each bucket."""
    below = sorted(
        (float(point.labels["le"]), int(point.value))
        for family in metrics.registry.collect()
        if family.name == "paddlepool_request_duration_seconds"
        for point in family.samples
        if point.name.endswith("_bucket") and point.labels["route"] == ROUTE
    )
    bounds, counts = zip(*below, strict=True)
    return list(bounds[:-1]), [after - before for before, after in pairwise((0, *counts))]


ROUNDS = 3
"""Slices of each candidate's time; those of all candidates are interleaved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search with `seconds` of load for each candidate; `tick` is called after each slice."""

    files: ModelFiles
    p95_seconds: float
    cores: int
    seconds: float
    open_predictor: PredictorFactory
    comparison_of: ComparisonOf
    tick: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda _: None

    async def run(self) -> tuple[Outcome | None, list[Outcome]]:
        """The choice (None if nothing is fast enough) and everything that was measured."""
        buckets = tuple(int(size) for size in self.files.config.parameters.get("buckets", ()))
        outcomes = await self._stage(thread_candidates(self.cores, buckets=buckets), known=[])
        for follow in (batch_candidates, bucket_candidates):
            best = choose(outcomes, p95_seconds=self.p95_seconds)
            if best is None:
                return None, outcomes
            outcomes += await self._stage(follow(best.candidate), known=outcomes)
        return choose(outcomes, p95_seconds=self.p95_seconds), outcomes

    async def _stage(
        self, candidates: Sequence[Candidate], *, known: Sequence[Outcome]
    ) -> list[Outcome]:
        loaded: list[CandidateUnderLoad] = []
        task = self.comparison_of(self.files.info())
        try:
            for candidate in candidates:
                if not self._fits_memory(candidate, known, loaded):
                    self.say(f"left out for lack of memory: {candidate}")
                    continue
                loaded.append(
                    await open_candidate(
                        self.files,
                        candidate,
                        self._samples(candidate),
                        cores=self.cores,
                        open_predictor=self.open_predictor,
                        agreement=None if task is None else task.agreement,
                    )
                )
            for _ in range(ROUNDS):
                for each in loaded:
                    await each.run(self.seconds / ROUNDS)
                    self.tick()
            return [each.outcome() for each in loaded]
        finally:
            for each in loaded:
                await each.close()

    def _fits_memory(
        self, candidate: Candidate, known: Sequence[Outcome], loaded: Sequence[CandidateUnderLoad]
    ) -> bool:
        """Estimate from the largest predictor so far; leave half of the free memory to others."""
        seen = [*known, *(one.outcome() for one in loaded if one.seconds)]
        each = max((one.resident_bytes // one.candidate.count for one in seen), default=0)
        if not each and loaded:
            open_now = loaded[0].model.groups()[0]
            each = open_now.resident_bytes // max(1, open_now.live)
        return candidate.count * each <= available_memory() // 2

    def _samples(self, candidate: Candidate) -> list[Sample]:
        files = self.files
        if candidate.buckets:
            parameters = dict(files.config.parameters) | {"buckets": list(candidate.buckets)}
            config = files.config.model_copy(update={"parameters": parameters})
            files = replace(files, config=config)
        task = self.comparison_of(files.info())
        samples = choose_samples(task, (), golden_test(files, task))
        # A job has one row; a batch is made of jobs.
        return [
            (name, {key: array[:1] for key, array in inputs.items()}) for name, inputs in samples
        ]


def most_ticks(cores: int, *, buckets: bool) -> int:
    """Maximum number of ticks of a search, for a progress bar."""
    stages = len(thread_candidates(cores, buckets=())) + 3 + (3 if buckets else 0)
    return ROUNDS * stages

"""The search of `paddlepool tune`: threads and predictors first, then batches, then buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.contracts.ports import PredictorFactory
from app.contracts.resources import available_memory
from app.evidence.comparison.load import CandidateUnderLoad, open_candidate
from app.evidence.comparison.tasks import ComparisonOf, Sample, choose_samples, golden_test
from app.evidence.comparison.tuning import (
    Candidate,
    Outcome,
    batch_candidates,
    bucket_candidates,
    choose,
    thread_candidates,
)
from app.models.repository.layout import ModelFiles

ROUNDS = 3
"""Slices of each candidate's time. The slices of all candidates are interleaved: a busy machine
slows all of them."""


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
        """Return the choice (None if nothing is fast enough) and everything that was measured."""
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
    """Return the maximum number of ticks of a search, for a progress bar."""
    stages = len(thread_candidates(cores, buckets=())) + 3 + (3 if buckets else 0)
    return ROUNDS * stages

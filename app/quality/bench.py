"""Runs many one-row jobs on one predictor, in the batches that the server would make of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from app.contracts.ports import Predictor
from app.contracts.tensors import Tensors, shape_key

T = TypeVar("T")
RUN_SECONDS = 120.0


class PredictorBench:
    """See `app.quality.ports.Bench`; `label` stands before the progress bars.

    `outputs` are those of every job so far.
    """

    def __init__(self, predictor: Predictor, *, max_batch_size: int, label: str) -> None:
        self._predictor = predictor
        self._max_batch_size = max_batch_size
        self._label = label
        self.outputs: list[Tensors] = []

    def run(self, jobs: Sequence[Tensors], *, what: str) -> list[Tensors]:
        alike: defaultdict[Any, list[int]] = defaultdict(list)
        for number, job in enumerate(jobs):
            alike[shape_key(job)].append(number)
        outputs: list[Tensors] = [{}] * len(jobs)
        with tqdm(total=len(jobs), desc=f"{self._label}: {what}", leave=False, disable=None) as bar:
            for numbers in alike.values():
                for start in range(0, len(numbers), self._max_batch_size):
                    members = numbers[start : start + self._max_batch_size]
                    for number, output in zip(
                        members, self._batch([jobs[n] for n in members]), strict=True
                    ):
                        outputs[number] = output
                    bar.update(len(members))
        self.outputs += outputs
        return outputs

    def each(self, items: Sequence[T], *, what: str) -> Iterator[T]:
        yield from tqdm(items, desc=f"{self._label}: {what}", leave=False, disable=None)

    def _batch(self, jobs: Sequence[Tensors]) -> Iterator[Tensors]:
        joined = {name: np.concatenate([job[name] for job in jobs]) for name in jobs[0]}
        found = self._predictor.run(joined, timeout=RUN_SECONDS)
        for row in range(len(jobs)):
            yield {name: array[row : row + 1] for name, array in found.items()}

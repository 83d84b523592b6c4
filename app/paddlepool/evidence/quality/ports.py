"""Types that a task and the measurement of quality share, and readers of data files."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from tqdm import tqdm

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Predictor
from paddlepool.contracts.tensors import Tensors, shape_key
from paddlepool.models.repository.selftest import RUN_SECONDS

T = TypeVar("T")
Value = float | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the data for a measurement are.

    `data` is the folder of the data sets. `smoke` lists files of labelled texts. `limit` is the
    number of samples to use from the start of each set; None means all.
    """

    data: Path
    smoke: tuple[Path, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of figures: named rows with a value per column. Counts are ints, others floats."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Value, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All results for one model; `notes` are sentences to show below the tables."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class EvaluationPredictor:
    """Runs a predictor on many jobs, in batches, with a progress bar.

    `outputs` holds the outputs of every job so far, in order.
    """

    predictor: Predictor
    max_batch_size: int
    label: str
    outputs: list[Tensors] = field(default_factory=list, init=False)

    def run(self, jobs: Sequence[Tensors], *, what: str) -> list[Tensors]:
        """Run one-row jobs, those of equal shape in batches; return their outputs in order.

        Raises the errors of Predictor.run().
        """
        alike: defaultdict[Any, list[int]] = defaultdict(list)
        for number, job in enumerate(jobs):
            alike[shape_key(job)].append(number)
        outputs: list[Tensors] = [{}] * len(jobs)
        with tqdm(total=len(jobs), desc=f"{self.label}: {what}", leave=False, disable=None) as bar:
            for numbers in alike.values():
                for start in range(0, len(numbers), self.max_batch_size):
                    members = numbers[start : start + self.max_batch_size]
                    joined = {
                        name: np.concatenate([jobs[number][name] for number in members])
                        for name in jobs[members[0]]
                    }
                    batch = self.predictor.run(joined, timeout=RUN_SECONDS)
                    for row, number in enumerate(members):
                        outputs[number] = {n: array[row : row + 1] for n, array in batch.items()}
                    bar.update(len(members))
        self.outputs += outputs
        return outputs

    def with_progress(self, items: Sequence[T], *, what: str) -> Iterator[T]:
        """Yield the items and show progress."""
        yield from tqdm(items, desc=f"{self.label}: {what}", leave=False, disable=None)


class TaskQuality(Protocol):
    """What a task's `quality` returns for a model: a measure of quality with its data loaded."""

    def measure(self, predictor: EvaluationPredictor) -> Findings: ...


class ComposedQuality(Protocol):
    """What the `quality` of a task of several models returns: `samples` are requests by name."""

    samples: Mapping[str, bytes]

    def measure(self, answers: Mapping[str, Any]) -> Findings:
        """Judge the answers to the samples, as ComposedPipeline.answer_of() returns them."""


def folder(path: Path) -> Path:
    if not path.is_dir():
        raise ConfigError(f"no such folder: {path} (--data names the data folder)")
    return path


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def read_jsonl(path: Path, *, keys: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """Read one JSON object per line, each with text under all `keys`; empty lines are skipped.

    Raises ConfigError if the file cannot be read, contains any other line, or has no object.
    """
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(read_bytes(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except ValueError as error:
            raise ConfigError(f"{path} line {number} is not JSON") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys):
            raise ConfigError(f"{path} line {number}: expected text under {' and '.join(keys)}")
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path} is empty")
    return rows

"""Opens predictors for a comparison and measures several groups in turn."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from app.contracts.errors import ConfigError, PaddlepoolError
from app.contracts.ports import Clock, Predictor, PredictorFactory, ServedModelInfo
from app.contracts.tensors import Tensors
from app.evidence.verdict.proof import Runs, Timed, interleave
from app.models.repository.config import InstanceGroup
from app.models.repository.layout import ModelFiles
from app.models.repository.selftest import SelfTest

Sample = tuple[str, Tensors]
"""A name to show, and one row of inputs."""


class TaskComparison(Protocol):
    """Samples and measure of agreement for a model, as the task's `comparison` returns them."""

    agreement_name: str
    least_agreement: float
    """Minimum agreement of a derived program, on average over some samples."""

    def samples(self, files: Sequence[Path]) -> list[Sample]: ...

    def default_samples(self) -> list[Sample]: ...

    def agreement(self, found: Tensors, expected: Tensors) -> float:
        """How well the meanings of two sets of outputs agree, from 0 to 1."""


ComparisonOf = Callable[[ServedModelInfo], TaskComparison | None]
"""A function that returns the comparison of a model's task, or None if it has none."""


def golden_test(files: ModelFiles, task: TaskComparison | None) -> SelfTest:
    """A version's self-test with the task's measure of agreement. Raises ManifestError."""
    return files.selftest(None if task is None else task.agreement)


def choose_samples(
    task: TaskComparison | None, files: Sequence[Path], selftest: SelfTest
) -> list[Sample]:
    """Samples from the files if given, else the task's own, else the self-test's input.

    Raises ConfigError if the files cannot be read or hold no input.
    """
    if not files:
        samples = [] if task is None else task.default_samples()
        return samples or [("self-test", selftest.inputs)]
    if task is None:
        raise ConfigError("--input needs a model with a pipeline; this one takes raw tensors")
    samples = task.samples(files)
    if not samples:
        raise ConfigError("the files given with --input hold no input")
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    predictors: dict[str, list[Predictor]]
    refused: dict[str, str]

    def close(self) -> None:
        for predictors in self.predictors.values():
            for predictor in predictors:
                predictor.close()


def open_groups(
    files: ModelFiles,
    groups: list[InstanceGroup],
    *,
    open_predictor: PredictorFactory,
    selftest: SelfTest,
    count: Callable[[InstanceGroup], int] = lambda _: 1,
    opened_one: Callable[[], None] = lambda: None,
) -> Opened:
    """Open `count(group)` predictors of each group.

    A group that cannot be opened is listed in `refused` with the reason; no error is raised.
    """
    opened = Opened(predictors={}, refused={})
    try:
        for group in groups:
            test = selftest.judging(group)
            predictors = opened.predictors[group.name] = []
            try:
                for _ in range(count(group)):
                    predictors.append(test.opened(open_predictor, files.spec(group)))
                    opened_one()
            except PaddlepoolError as error:
                for predictor in opened.predictors.pop(group.name):
                    predictor.close()
                opened.refused[group.name] = error.message
    except BaseException:
        opened.close()
        raise
    return opened


RUN_SECONDS = 120.0
SLICES = 3
"""Number of slices of each group's concurrent runs; the groups take turns after each slice."""


@dataclass(slots=True)
class Load:
    """Times of one group under load, with one client per instance."""

    instances: int
    seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.wall_seconds if self.wall_seconds else 0.0


def measure_single(
    predictors: Mapping[str, Predictor],
    samples: Sequence[Sample],
    *,
    requests: int,
    warm_up: Sequence[Sample] | None = None,
    tick: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Runs]:
    """Run each group `requests` times, one run at a time, cycling through the samples.

    `warm_up` runs first; it defaults to all samples.
    """
    for predictor in predictors.values():
        for _, inputs in samples if warm_up is None else warm_up:
            predictor.run(inputs, timeout=RUN_SECONDS)

    def timed(predictor: Predictor, inputs: Tensors) -> Timed:
        began = clock()
        outputs = predictor.run(inputs, timeout=RUN_SECONDS)
        seconds = clock() - began
        tick()
        return Timed(outputs, seconds)

    return interleave(
        {name: partial(timed, predictor) for name, predictor in predictors.items()},
        [inputs for _, inputs in samples],
        rounds=requests,
    )


def runs_of_slice(requests: int, instances: int) -> int:
    """A slice's part of `requests`, rounded up to the same number for each instance."""
    return -(-requests // (SLICES * instances)) * instances


def measure_concurrent(
    predictors: Mapping[str, Sequence[Predictor]],
    samples: Sequence[Sample],
    *,
    requests: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Load]:
    """Run each group at least `requests` times, in slices, with all its predictors busy."""
    loads = {name: Load(instances=len(several)) for name, several in predictors.items()}
    names = list(predictors)
    for slice_number in range(SLICES):
        start = slice_number % len(names)
        for name in names[start:] + names[:start]:
            load = loads[name]
            runs = runs_of_slice(requests, load.instances)
            began = time.perf_counter()
            load.seconds += _busy(predictors[name], samples, runs, tick)
            load.wall_seconds += time.perf_counter() - began
    return loads


def _busy(
    predictors: Sequence[Predictor],
    samples: Sequence[Sample],
    requests: int,
    tick: Callable[[], None],
) -> list[float]:
    """Make `requests` runs and return their seconds.

    The predictors share the runs; each predictor has its own thread.
    """
    lock, numbers = threading.Lock(), iter(range(requests))
    seconds: list[float] = []

    def client(predictor: Predictor) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            began = time.perf_counter()
            predictor.run(samples[number % len(samples)][1], timeout=RUN_SECONDS)
            took = time.perf_counter() - began
            with lock:
                seconds.append(took)
                tick()

    with ThreadPoolExecutor(len(predictors)) as clients:
        list(clients.map(client, predictors))
    return seconds

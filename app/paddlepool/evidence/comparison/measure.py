"""Opens predictors for a comparison and measures several groups in turn."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from paddlepool.contracts.errors import ConfigError, PaddlepoolError
from paddlepool.contracts.ports import Clock, Predictor, PredictorFactory
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.evidence.verdict.proof import MIN_PAIRS, Runs, Timed, interleave
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.inputs import ARRAYS, read_input
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.selftest import RUN_SECONDS, SelfTest, too_small

Sample = tuple[str, Tensors]
"""The name of a sample, for display, and its input tensors."""


class TaskComparison(Protocol):
    """What a task's `comparison` returns for a model: samples and a measure of agreement."""

    agreement_name: str
    least_agreement: float
    """Minimum agreement of a derived program, on average over some samples."""

    def samples(self, files: Sequence[Path]) -> list[Sample]: ...

    def default_samples(self) -> list[Sample]: ...

    def agreement(self, outputs: Tensors, expected: Tensors) -> float:
        """Return how well the meanings of two sets of outputs agree, from 0 to 1."""


def choose_samples(
    task: TaskComparison | None,
    paths: Sequence[Path],
    selftest: SelfTest,
    inputs: Sequence[TensorSpec],
) -> list[Sample]:
    """Return samples from the files if any are named, else the task's, else the self-test's input.

    Files of arrays (.npz) fit every model, others only a task that reads them. Raises
    ConfigError if the files cannot be read, do not fit the model or hold no input, or if the
    self-test's input is too small to measure anything on it. Also raises the errors of the task's
    samples().
    """
    if not paths:
        samples = [] if task is None else task.default_samples()
        if not samples and (reason := too_small(selftest, inputs)):
            raise ConfigError(f"{reason}, or use --input")
        return samples or [("self-test", selftest.inputs)]
    samples = [(path.name, read_input(path, inputs)) for path in paths if path.suffix == ARRAYS]
    others = [path for path in paths if path.suffix != ARRAYS]
    if others and task is None:
        raise ConfigError(
            f"{others[0].name}: a model without a pipeline reads only {ARRAYS} files with "
            "an array for each input"
        )
    if others and task is not None:
        samples += task.samples(others)
    if not samples:
        raise ConfigError("the files given with --input hold no input")
    return samples


def open_groups(
    files: ModelFiles,
    groups: Sequence[InstanceGroup],
    *,
    stack: ExitStack,
    open_predictor: PredictorFactory,
    selftest: SelfTest,
    count: Callable[[InstanceGroup], int] = lambda _: 1,
    opened_one: Callable[[], object] = lambda: None,
) -> tuple[dict[str, list[Predictor]], dict[str, str]]:
    """Open `count(group)` predictors of each group; `stack` closes them.

    Each predictor must pass its self-test. Calls `opened_one` after each one. Returns the
    predictors by group, and for each other group the reason why it cannot be opened. Raises OSError
    if the system cannot start a process.
    """
    opened: dict[str, list[Predictor]] = {}
    refused: dict[str, str] = {}
    for group in groups:
        test = selftest.judging(group)
        predictors: list[Predictor] = []
        with ExitStack() as own:
            try:
                for _ in range(count(group)):
                    predictor = test.opened(open_predictor, files.spec(group))
                    predictors.append(own.enter_context(closing(predictor)))
                    opened_one()
            except PaddlepoolError as error:
                refused[group.name] = error.message
                continue
            stack.push(own.pop_all())
        opened[group.name] = predictors
    return opened, refused


SLICES = MIN_PAIRS
"""Number of slices of each group's concurrent runs; the groups take turns after each slice, so that
the slices of two groups are pairs."""


@dataclass(slots=True)
class Load:
    """Times of one group under load, with one client per instance.

    `slices` has the duration of each slice, divided by its number of runs.
    """

    instances: int
    seconds: list[float] = field(default_factory=list)
    slices: list[float] = field(default_factory=list)
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
    tick: Callable[[], object] = lambda: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Runs]:
    """Run each group `requests` times, one run at a time, cycling through the samples.

    `warm_up` runs first, untimed; it defaults to all samples. Calls `tick` after each timed run.
    Returns the timed runs by group. Raises the errors of Predictor.run().
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
    """Return the number of runs in a slice: `requests` / SLICES.

    It is rounded up to a multiple of `instances`.
    """
    return -(-requests // (SLICES * instances)) * instances


def measure_concurrent(
    predictors: Mapping[str, Sequence[Predictor]],
    samples: Sequence[Sample],
    *,
    requests: int,
    tick: Callable[[], object] = lambda: None,
) -> dict[str, Load]:
    """Run each group at least `requests` times, in slices, with all its predictors busy.

    Calls `tick` after each run. Returns the times by group. Raises the errors of Predictor.run().
    """
    loads = {name: Load(instances=len(several)) for name, several in predictors.items()}
    turns = deque(predictors)
    for turn in range(SLICES):
        for name in turns:
            load = loads[name]
            runs = runs_of_slice(requests, load.instances)
            numbers = range(turn * runs, (turn + 1) * runs)
            inputs = [samples[number % len(samples)][1] for number in numbers]
            free: SimpleQueue[Predictor] = SimpleQueue()
            for predictor in predictors[name]:
                free.put(predictor)
            began = time.perf_counter()
            with ThreadPoolExecutor(load.instances) as clients:
                for seconds in clients.map(partial(_timed, free), inputs):
                    load.seconds.append(seconds)
                    tick()
            duration = time.perf_counter() - began
            load.slices.append(duration / runs)
            load.wall_seconds += duration
        turns.rotate(-1)
    return loads


def _timed(free: SimpleQueue[Predictor], inputs: Tensors) -> float:
    """Wait for a free predictor, run it, and return the seconds of the run."""
    predictor = free.get()
    try:
        began = time.perf_counter()
        predictor.run(inputs, timeout=RUN_SECONDS)
        return time.perf_counter() - began
    finally:
        free.put(predictor)

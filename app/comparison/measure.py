"""Times and outputs of several groups, interleaved so that a busy machine slows all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from app.comparison.tasks import Sample
from app.contracts.ports import Clock, Predictor
from app.contracts.tensors import Tensors
from app.evidence.proof import bitwise_equal

RUN_SECONDS = 120.0
SLICES = 3
"""Slices of a group's concurrent runs; those of the other groups come in between."""


@dataclass(slots=True)
class Runs:
    """One group alone: seconds in the order of the requests, and each sample's first outputs."""

    seconds: list[float] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    repeatable: bool = True


@dataclass(slots=True)
class Load:
    """One group under as many clients as it has instances."""

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
    """`requests` runs of each group, one at a time, cycling through the samples.

    `warm_up` runs first; it is every sample unless given. Each round begins with the next group,
    so that no group always follows the same other one.
    """
    for name in predictors:
        for _, inputs in samples if warm_up is None else warm_up:
            predictors[name].run(inputs, timeout=RUN_SECONDS)
    runs = {name: Runs() for name in predictors}
    names = list(predictors)
    for request in range(requests):
        index = request % len(samples)
        inputs = samples[index][1]
        for name in _rotated(names, request):
            began = clock()
            outputs = predictors[name].run(inputs, timeout=RUN_SECONDS)
            runs[name].seconds.append(clock() - began)
            _keep(runs[name], index, outputs)
            tick()
    return runs


def _keep(runs: Runs, index: int, outputs: Tensors) -> None:
    if index == len(runs.outputs):
        runs.outputs.append(outputs)
    elif runs.repeatable:
        runs.repeatable = bitwise_equal(outputs, runs.outputs[index])


def measure_concurrent(
    predictors: Mapping[str, Sequence[Predictor]],
    samples: Sequence[Sample],
    *,
    requests: int,
    tick: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Load]:
    """At least `requests` runs of each group, all its predictors busy at once, in slices."""
    loads = {name: Load(instances=len(several)) for name, several in predictors.items()}
    names = list(predictors)
    for slice_number in range(SLICES):
        for name in _rotated(names, slice_number):
            load = loads[name]
            share = -(-requests // (SLICES * load.instances)) * load.instances
            began = clock()
            load.seconds += _busy(predictors[name], samples, share, tick, clock)
            load.wall_seconds += clock() - began
    return loads


def _busy(
    predictors: Sequence[Predictor],
    samples: Sequence[Sample],
    requests: int,
    tick: Callable[[], None],
    clock: Clock,
) -> list[float]:
    """Each predictor, in a thread of its own, takes the next of `requests` until none is left."""
    lock, numbers = threading.Lock(), iter(range(requests))
    seconds: list[float] = []

    def client(predictor: Predictor) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            began = clock()
            predictor.run(samples[number % len(samples)][1], timeout=RUN_SECONDS)
            took = clock() - began
            with lock:
                seconds.append(took)
                tick()

    with ThreadPoolExecutor(len(predictors)) as clients:
        list(clients.map(client, predictors))
    return seconds


def _rotated(names: Sequence[str], by: int) -> Iterator[str]:
    start = by % len(names)
    return iter((*names[start:], *names[:start]))

"""The same predictor in a bare loop: the child process of the server without anything around it.

`open_bare` is the target of `app.process.child.Child`, so that process, niceness, environment,
threads and options are those of a served instance. A call runs the model on the given arrays
again and again and answers how often, and how long each run took.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.backends import BACKENDS
from app.backends.process import NICE, environment_of
from app.contracts.tensors import Tensors
from app.process.child import Child, Limits
from app.repository.layout import ModelFiles

HERE = Path(__file__).resolve().parent

Answer = tuple[Mapping[str, Any], Tensors]


def open_bare(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Opens the predictor as its backend does; the handler takes {"seconds": float}."""
    module, _, function = BACKENDS[opening["backend"]].partition(":")
    ready, run = getattr(importlib.import_module(module), function)(opening)

    def loop(meta: Mapping[str, Any], arrays: Tensors, _descriptors: Sequence[int]) -> Answer:
        end = time.perf_counter() + meta["seconds"]
        durations = []
        begin = now = time.perf_counter()
        while now < end:
            run({}, arrays, ())
            durations.append(-now + (now := time.perf_counter()))
        return {
            "runs": len(durations),
            "seconds": now - begin,
            "median": statistics.median(durations),
        }, {}

    return ready, loop


class BarePool:
    """As many bare predictors as the model's default group has instances."""

    def __init__(self, model: ModelFiles, inputs: Tensors) -> None:
        group = model.config.group(model.config.default_group)
        spec = model.spec(group)
        path = {"PYTHONPATH": f"{HERE}:{HERE.parent}"}
        limits = Limits(nice=NICE, environment=environment_of(spec.backend) | path)
        opening = asdict(spec) | {"directory": str(spec.directory.resolve())}
        self.size = group.count
        self._rows = next(iter(inputs.values())).shape[0]
        self._inputs = inputs
        self._children = [Child("bare:open_bare", opening, limits=limits) for _ in range(self.size)]
        self._threads = ThreadPoolExecutor(self.size)

    def run(self, seconds: float, *, children: int | None = None) -> tuple[float, float]:
        """Rows a second of all loops together, and the median seconds of one run."""
        replies = list(
            self._threads.map(
                lambda child: (
                    child.call({"seconds": seconds}, self._inputs, timeout=seconds + 60).meta
                ),
                self._children[: children or self.size],
            )
        )
        rate = sum(self._rows * reply["runs"] / reply["seconds"] for reply in replies)
        return rate, statistics.median(reply["median"] for reply in replies)

    def close(self) -> None:
        self._threads.shutdown()
        for child in self._children:
            child.close()

"""What a comparison asks of a task, and the inputs it runs on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.repository.selftest import SelfTest

Sample = tuple[str, Tensors]
"""A name to show, and one row of inputs."""


class TaskComparison(Protocol):
    """What a task package's `comparison(info)` returns."""

    agreement_name: str

    def samples(self, files: Sequence[Path]) -> list[Sample]: ...

    def default_samples(self) -> list[Sample]: ...

    def agreement(self, found: Tensors, expected: Tensors) -> float:
        """How far two sets of outputs mean the same: from 0 to 1."""


def task_comparison(info: ServedModelInfo, pipelines: Mapping[str, str]) -> TaskComparison | None:
    """The model's own; None for a model without a pipeline or a task that has none."""
    if info.pipeline is None:
        return None
    if info.pipeline not in pipelines:
        raise ConfigError(
            f"{info.name}: pipeline is {info.pipeline!r}, there are {', '.join(pipelines)}"
        )
    package = importlib.import_module(pipelines[info.pipeline])
    build = getattr(package, "comparison", None)
    return cast(TaskComparison, build(info)) if build is not None else None


def choose_samples(
    task: TaskComparison | None, files: Sequence[Path], selftest: SelfTest
) -> list[Sample]:
    """From the files if there are any, else the task's own, else the self-test's input.

    Raises ConfigError where files are given that nothing can read.
    """
    if files and task is None:
        raise ConfigError("--input needs a model with a pipeline; this one takes raw tensors")
    if files and task is not None:
        samples = task.samples(files)
        if not samples:
            raise ConfigError("the files given with --input hold no input")
        return samples
    return (task.default_samples() if task is not None else []) or [("self-test", selftest.inputs)]

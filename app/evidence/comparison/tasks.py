"""The port between comparisons and a task, and the inputs of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.models.repository.layout import ModelFiles
from app.models.repository.selftest import SelfTest

Sample = tuple[str, Tensors]
"""A name to show, and one row of inputs."""


class TaskComparison(Protocol):
    """Result of a task's `comparison`."""

    agreement_name: str
    least_agreement: float
    """Minimum agreement of a derived program, on average over some samples."""

    def samples(self, files: Sequence[Path]) -> list[Sample]: ...

    def default_samples(self) -> list[Sample]: ...

    def agreement(self, found: Tensors, expected: Tensors) -> float:
        """Return how well the meanings of two sets of outputs agree, from 0 to 1."""


ComparisonOf = Callable[[ServedModelInfo], TaskComparison | None]
"""Finds the comparison of a model's task; None for a model without one."""


def golden_test(files: ModelFiles, task: TaskComparison | None) -> SelfTest:
    """Return a version's self-test with the task's measure. Raises ManifestError."""
    return files.selftest(None if task is None else task.agreement)


def choose_samples(
    task: TaskComparison | None, files: Sequence[Path], selftest: SelfTest
) -> list[Sample]:
    """Take samples from the files if given, else the task's own, else the self-test's input.

    Raises ConfigError if the given files cannot be read or hold no input.
    """
    if files and task is None:
        raise ConfigError("--input needs a model with a pipeline; this one takes raw tensors")
    if files and task is not None:
        samples = task.samples(files)
        if not samples:
            raise ConfigError("the files given with --input hold no input")
        return samples
    return (task.default_samples() if task is not None else []) or [("self-test", selftest.inputs)]

"""What a measurement of quality asks of a task, what it gives it, and the figures in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from app.contracts.tensors import Tensors

T = TypeVar("T")
Value = float | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the data are. `limit` keeps only the first items of each set: a quick look.

    `smoke` are files of sentences with labels, each judged on its own.
    """

    data: Path
    smoke: tuple[Path, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures under one title; each row has a name and one value a column. `key` names it in JSON.

    Whole numbers are counts; all others lie within 0 … 1 and are shown to four digits.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Value, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that was measured of one model; `notes` are sentences, such as what it gets wrong."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()


class Bench(Protocol):
    """A served predictor, and a progress bar."""

    def run(self, jobs: Sequence[Tensors], *, what: str) -> list[Tensors]:
        """The outputs of each job of one row, in order; equal shapes share a batch."""

    def each(self, items: Sequence[T], *, what: str) -> Iterator[T]:
        """The items, with progress shown."""


class TaskQuality(Protocol):
    """What a task's `quality` returns, its data already read."""

    def measure(self, bench: Bench) -> Findings: ...

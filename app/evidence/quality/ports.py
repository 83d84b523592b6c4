"""Ports between the measurement of quality and a task, and readers of data files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from app.contracts.errors import ConfigError
from app.contracts.tensors import Tensors

T = TypeVar("T")
Value = float | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Location of the data. `limit` keeps the first items of each set; `smoke` are labelled
    sentences."""

    data: Path
    smoke: tuple[Path, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures under one title, by name and column. Whole numbers are counts, others fractions."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Value, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All results for one model; `notes` are sentences."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()


class Bench(Protocol):
    """A served predictor with a progress bar."""

    def run(self, jobs: Sequence[Tensors], *, what: str) -> list[Tensors]:
        """Outputs of each one-row job, in order; jobs of equal shape share a batch."""

    def each(self, items: Sequence[T], *, what: str) -> Iterator[T]:
        """Yield the items and show progress."""


class TaskQuality(Protocol):
    """Result of a task's `quality`; its data are already read."""

    def measure(self, bench: Bench) -> Findings: ...


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
    """Read one object per line, each with text under all `keys`. Raises ConfigError."""
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

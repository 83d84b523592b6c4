"""Reads the data files of a measurement; what is absent or unfit is one clear ConfigError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.contracts.errors import ConfigError


def folder(path: Path) -> Path:
    """The same path; raises ConfigError where it is no directory."""
    if not path.is_dir():
        raise ConfigError(f"data absent: there is no folder {path} (--data names the data folder)")
    return path


def read_bytes(path: Path) -> bytes:
    """Raises ConfigError where the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"data absent: {path} cannot be read: {error.strerror}") from error


def read_jsonl(path: Path, *, keys: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """One object a line, each with text under all `keys`. Raises ConfigError."""
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
        raise ConfigError(f"{path} holds no line")
    return rows

"""Helpers of several commands: the model repository, tables, and a quiet Paddle."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.models.repository.layout import ModelFiles, ModelRepository


def add_repository_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="default: the setting PADDLEPOOL_MODEL_REPOSITORY, or ./model_repo",
    )


def repository_root(given: Path | None) -> Path:
    """The directory given, or the one that the settings name. Raises ConfigError."""
    from pydantic import ValidationError

    from app.contracts.errors import ConfigError
    from app.settings.server import Settings, explain

    try:
        return given or Settings().model_repository
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def open_repository(given: Path | None) -> ModelRepository:
    """The repository at `given`, or the one that the settings name. Raises ConfigError."""
    from app.models.repository.layout import ModelRepository

    return ModelRepository(repository_root(given))


def read_version(repository: ModelRepository, name: str, version: int | None) -> ModelFiles:
    """A verified version, the newest unless named. Raises ManifestError where there is none."""
    from app.contracts.errors import ManifestError

    versions = repository.versions(name)
    if not versions:
        raise ManifestError(f"{name}: no version with a manifest is published")
    return repository.read(name, versions[0] if version is None else version)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def silence() -> None:
    """Silence what no user of a command can act on. Call before Paddle is imported."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    # A C++ build tool for custom operators, which this project has none of.
    warnings.filterwarnings("ignore", message="No ccache found")

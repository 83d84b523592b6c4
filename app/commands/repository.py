"""Which model repository a command works on, and the version in it that it is asked about."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.repository.layout import ModelFiles, ModelRepository


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
    from app.settings import Settings, explain

    try:
        return given or Settings().model_repository
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def open_repository(given: Path | None) -> ModelRepository:
    """The repository at `given`, or the one that the settings name. Raises ConfigError."""
    from app.repository.layout import ModelRepository

    return ModelRepository(repository_root(given))


def read_version(repository: ModelRepository, name: str, version: int | None) -> ModelFiles:
    """A verified version, the newest unless named. Raises ManifestError where there is none."""
    from app.contracts.errors import ManifestError

    versions = repository.versions(name)
    if not versions:
        raise ManifestError(f"{name}: no version with a manifest is published")
    return repository.read(name, versions[0] if version is None else version)

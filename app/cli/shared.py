"""Helpers of several commands: the model repository, and a quiet Paddle."""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

from pydantic import ValidationError

from app.contracts.errors import ConfigError, ManifestError
from app.models.repository.layout import ModelFiles, ModelRepository
from app.models.repository.shipped import located
from app.settings.server import Settings, explain


def add_repository_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="default: PADDLEPOOL_MODEL_REPOSITORY, else ./model_repo, else the"
        " repository that `paddlepool serve` has created for this user",
    )


def repository_root(given: Path | None) -> Path:
    """Return `given`, else the configured repository.

    If that is a missing default, return the user's own repository, if it exists. Raises ConfigError
    if a setting is invalid.
    """
    if given:
        return given
    try:
        settings = Settings()
    except ValidationError as error:
        raise ConfigError(explain(error)) from error
    return located(settings.model_repository, chosen=settings.repository_is_chosen)


def open_repository(given: Path | None) -> ModelRepository:
    return ModelRepository(repository_root(given))


def read_version(repository: ModelRepository, name: str, version: int | None) -> ModelFiles:
    """Read and verify a version, by default the newest. Raises ManifestError."""
    versions = repository.versions(name)
    if not versions:
        raise ManifestError(f"{name}: no version with a manifest is published")
    return repository.read(name, versions[0] if version is None else version)


def silence() -> None:
    """Silence messages that users of a command cannot act on. Call before importing Paddle."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    # ccache speeds up builds of custom C++ operators; this project has none.
    warnings.filterwarnings("ignore", message="No ccache found")

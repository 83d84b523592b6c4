"""A version directory that appears complete or not at all: staged, synced, renamed."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.contracts.errors import ExportError
from app.repository.layout import VERSION
from app.repository.staging import staging_name

LAST_VERSION = 999_999_999
"""The highest that VERSION allows, and so the highest that a server sees."""


def versions(model: Path) -> list[int]:
    """The version directories of the model, published or not, highest first."""
    if not model.is_dir():
        return []
    names = [path.name for path in model.iterdir()]
    return sorted((int(name) for name in names if VERSION.fullmatch(name)), reverse=True)


def next_version(model: Path) -> int:
    """One more than the highest version directory of the model; 1 for a new model."""
    return max(versions(model), default=0) + 1


@contextmanager
def staged_version(model: Path, version: int) -> Iterator[Path]:
    """An empty directory to build `version` in; published when the block ends without an error.

    Raises ExportError when the version exists already, or is none that a server would see.
    """
    if not VERSION.fullmatch(str(version)):
        raise ExportError(
            f"a version is a whole number from 1 to {LAST_VERSION}, received {version}",
            limit=LAST_VERSION,
            received=version,
        )
    if (model / str(version)).exists():
        raise ExportError(f"{model.name} already has a version {version}")
    with staging_name(model) as staging:
        try:
            staging.mkdir(parents=True)
        except OSError as error:
            raise ExportError(f"cannot write to {model}: {error.strerror}") from error
        yield staging
        for path in [*staging.iterdir(), staging]:
            _sync(path)
        try:
            staging.rename(model / str(version))
        except OSError as error:
            raise ExportError(f"version {version} of {model.name} was taken meanwhile") from error
        _sync(model)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def published_version(model: Path, sha256: str) -> Path | None:
    """The version of `model` that was built from the weights file with this digest, if any."""
    for number in versions(model):
        try:
            manifest = json.loads((model / str(number) / "manifest.json").read_text("utf-8"))
            if manifest["weights"]["sha256"] == sha256:
                return model / str(number)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged version is the server's business; it is not the one we look for
    return None

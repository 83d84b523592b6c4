"""A version directory that appears complete or not at all: staged, synced, renamed."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import ExportError

_VERSION = re.compile(r"[1-9][0-9]*")


def next_version(model: Path) -> int:
    """One more than the highest version directory of the model; 1 for a new model."""
    if not model.is_dir():
        return 1
    taken = [int(path.name) for path in model.iterdir() if _VERSION.fullmatch(path.name)]
    return max(taken, default=0) + 1


@contextmanager
def staged_version(model: Path, version: int) -> Iterator[Path]:
    """An empty directory to build `version` in; published when the block ends without an error.

    The server ignores staging directories, and one left behind by a power cut harms nothing.
    Raises ExportError when the version exists already.
    """
    if (model / str(version)).exists():
        raise ExportError(f"{model.name} already has a version {version}")
    staging = model / f".staging-{secrets.token_hex(6)}"
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise ExportError(f"cannot write to {model}: {error.strerror}") from error
    try:
        yield staging
        for path in [*staging.iterdir(), staging]:
            _sync(path)
        try:
            staging.rename(model / str(version))
        except OSError as error:
            raise ExportError(f"version {version} of {model.name} was taken meanwhile") from error
        _sync(model)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Names in a model's directory under which a version or a file is written before it appears."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STAGING = ".staging-"
"""How names begin of what is being written in a model's directory: no server looks at them."""
LEFTOVER_SECONDS = 86_400.0
"""Old enough that nobody can be writing there, on this machine or another."""


@contextmanager
def staging_name(directory: Path) -> Iterator[Path]:
    """An unused name in `directory`; a file or directory that bears it at the end is removed.

    What was left behind by a power cut harms nothing, and is removed here a day later.
    """
    for leftover in directory.glob(f"{STAGING}*"):
        with contextlib.suppress(OSError):  # removed meanwhile, by whoever was writing there
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                _remove(leftover)
    path = directory / f"{STAGING}{secrets.token_hex(6)}"
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """What cannot be removed stays: the error that led here says why."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

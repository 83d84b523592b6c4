"""The open files of this process."""

import contextlib
from pathlib import Path


def open_descriptors(*, but: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    """Number and target of each, `but` targets that begin so."""
    descriptors = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if not (target := str(path.readlink())).startswith(but):
                descriptors.add((path.name, target))
    return descriptors

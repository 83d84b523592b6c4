"""Opens and writes repository files safely; finds the user's repository and the shipped models."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory

IRREGULAR = (errno.EINVAL, "not a regular file")

FAULTS = frozenset(
    (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR)
)
"""Values of errno whose cause is the files themselves. Others have a cause that may pass."""


def open_plain_file(path: Path) -> BufferedReader:
    """Open a regular file, without waiting on a pipe.

    Raises OSError if the file cannot be opened, or is a link or not a regular file. Links to its
    directories are followed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device that is not there
            raise OSError(*IRREGULAR) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(*IRREGULAR)
    return os.fdopen(descriptor, "rb")


def content_digest(path: Path) -> bytes:
    """Return the SHA-256 digest of a file. Raises the OSError of open_plain_file()."""
    with open_plain_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").digest()


STAGING = ".staging-"
"""Prefix of the names of files and directories that are not complete yet. Servers ignore them."""
LEFTOVER_SECONDS = 86_400.0
"""Age at which a staged file or directory is removed: no machine can still be writing it."""


@contextmanager
def staging_name(directory: Path) -> Iterator[Path]:
    """Provide an unused name in `directory`; remove whatever has that name at the end of the block.

    Also removes leftovers of a power failure that are older than a day.
    """
    for leftover in directory.glob(f"{STAGING}*"):
        with contextlib.suppress(OSError):  # its writer may have removed it
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                _remove(leftover)
    path = directory / f"{STAGING}{secrets.token_hex(6)}"
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or directory. Failures are ignored, so that they do not hide another error."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_synced(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a new file; return when it is on the disk. Raises OSError, also if it exists."""
    with path.open("xb") as file:
        file.writelines(blocks)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Return when the names in a directory are on the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write or replace a file; a reader finds the old content or the new one. Raises OSError.

    Missing directories are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with staging_name(path.parent) as staged:
        write_synced(staged, [content])
        staged.replace(path)


def user_path(variable: str, usual: str, name: str) -> Path | None:
    """Return the path `paddlepool/NAME` in a folder of this user (XDG base directories).

    The folder is the one that the environment variable names, if that is an absolute path, or else
    `usual` in the user's home. Returns None if there is neither.
    """
    base = Path(os.environ.get(variable, ""))
    try:
        # The specification tells programs to ignore a relative path.
        folder = base if base.is_absolute() else Path.home() / usual
    except RuntimeError:
        return None
    return folder / "paddlepool" / name


PACKED = Path(__file__).parents[1] / "shipped"
"""Where setup.py puts the models of `model_repo/` in a wheel."""
CHECKOUT = Path(__file__).parents[4] / "model_repo"


def shipped_models() -> Path | None:
    """Return the repository installed with the package, else that of the checkout, else None."""
    return next((root for root in (PACKED, CHECKOUT) if root.is_dir()), None)


def user_repository() -> Path | None:
    """Return the path of this user's repository, which may not exist, or None; see user_path()."""
    return user_path("XDG_DATA_HOME", ".local/share", "model_repo")


def located(configured: Path, *, chosen: bool) -> Path:
    """Return `configured`, or the user's own repository if only that exists.

    `chosen` is True if an operator chose `configured`, which is then returned even if it does not
    exist. It is False if `configured` is the default.
    """
    if chosen or configured.exists():
        return configured
    own = user_repository()
    return own if own is not None and exists(own) else configured


def exists(path: Path) -> bool:
    """Return whether a path exists. Unlike Path.exists(), False if the user has no access."""
    return os.path.exists(path)  # noqa: PTH110


def fill(root: Path, models: Path) -> None:
    """Copy the shipped `models` to `root`, which must not exist. Raises OSError.

    Hidden entries, `__pycache__` and file modes are not copied. The repository appears complete or
    not at all. The next start repeats an interrupted copy.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=STAGING, dir=root.parent) as staging:
        copy = Path(staging) / root.name
        shutil.copytree(
            models,
            copy,
            copy_function=shutil.copyfile,  # copies no modes: the user owns the files
            ignore=shutil.ignore_patterns(".*", "__pycache__"),
        )
        copy.rename(root)


def untouched(model: Path, models: Path) -> bool:
    """Return whether a model's directory has the same names of entries as the shipped one.

    The contents are not compared. Returns False if one of the two does not exist.
    """
    shipped = models / model.name
    if not model.is_dir() or not shipped.is_dir():
        return False
    return {path.name for path in model.iterdir()} == {path.name for path in shipped.iterdir()}

"""Opens a source of model folders: a directory, an archive, a wheel, or an address of a hub."""

import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path
from tempfile import TemporaryDirectory

from paddlepool.contracts.errors import ConfigError, DownloadError
from paddlepool.making.export.publish import sha256_of
from paddlepool.making.export.release import download_wheel
from paddlepool.models.sources.sync import Source

MAX_BYTES, MAX_FILES = 4 << 30, 10_000
"""Limits on the files of an unpacked archive, and on those copied from a hub."""
REGISTRY = "pypi:"
REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!_-]*")


@dataclass(frozen=True, slots=True)
class Opened:
    """A directory with the files of a source; `sha256` is the archive's digest, else empty."""

    root: Path
    sha256: str = ""


@contextmanager
def opened_source(source: str, *, sha256: str = "", timeout: float) -> Iterator[Opened]:
    """Yield a directory with the files of a source; copies are removed afterwards.

    `source` is a directory, a .zip, .whl, .tar or compressed .tar file, `pypi:NAME==VERSION`, or an
    address of a hub or an object store such as `hf://owner/repository@revision`. With `sha256`, it
    must be an archive with this digest. `timeout` limits the seconds of a download from the
    package registry. Raises ConfigError for a source that cannot be opened or a directory with
    `sha256`, and DownloadError if a download fails or the digest differs.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if source.startswith(REGISTRY):
            requirement = source.removeprefix(REGISTRY)
            if not REQUIREMENT.fullmatch(requirement):
                raise ConfigError(f"{source} must be {REGISTRY}NAME==VERSION")
            path = download_wheel(requirement, folder, sha256=sha256, timeout=timeout)
        elif "://" in source:
            Source(source).copy(folder, most_bytes=MAX_BYTES, most_files=MAX_FILES)
            path = folder
        else:
            path = Path(source)
        if path.is_dir():
            if sha256:
                raise ConfigError("--sha256 belongs to an archive or a wheel")
            yield Opened(path)
            return
        if not path.is_file():
            raise ConfigError(f"{path}: no such file or directory")
        digest = sha256_of(path)
        if sha256 and digest != sha256.lower():
            raise DownloadError(f"{path.name} has sha256 {digest}, expected {sha256}")
        unpack(path, folder / "unpacked")
        yield Opened(folder / "unpacked", digest)


def unpack(
    archive: Path, folder: Path, *, most_bytes: int = MAX_BYTES, most_files: int = MAX_FILES
) -> None:
    """Unpack the regular files of a .zip, .whl or .tar file, compressed or not.

    They go into a new `folder`. Links and devices of a .tar are left out; a link in a .zip becomes
    a text file that contains its target. Nothing is written outside of `folder`: a name that leads
    out of it loses its `..` in a .zip, and is an error in a .tar. Raises ConfigError for such a
    .tar, and if the archive is damaged or unpacks to more than the limits. Files that were unpacked
    before an error stay.
    """
    folder.mkdir()
    left_bytes, left_files = most_bytes, most_files
    try:
        for size, extract in _members(archive, folder):
            left_bytes, left_files = left_bytes - size, left_files - 1
            if left_bytes < 0 or left_files < 0:
                raise ConfigError(
                    f"{archive.name} unpacks to more than {most_bytes:,} bytes or "
                    f"{most_files:,} files"
                )
            extract()
    except (
        tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, OSError,
        NotImplementedError, RuntimeError,  # an unknown compression, a password
    ) as error:  # fmt: skip
        raise ConfigError(f"{archive.name} cannot be unpacked: {error}") from error


def _members(archive: Path, folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """Yield the size of each file to unpack, and the function that unpacks it; see unpack().

    Raises ConfigError if `archive` is no .zip, .whl or .tar file.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                if not entry.is_dir():
                    yield entry.file_size, partial(opened.extract, entry, folder)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isreg():
                    yield member.size, partial(tar.extract, member, folder, filter="data")
    else:
        raise ConfigError(f"{archive.name} is no directory, .zip, .whl or .tar file")

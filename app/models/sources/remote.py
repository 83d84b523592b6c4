"""A model repository in an object store, on a hub or in a directory, read through fsspec."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from app.contracts.errors import ConfigError, DownloadError
from app.models.repository.config import MODEL_NAME
from app.models.repository.layout import VERSION
from app.models.repository.manifest import FILE_NAME, MANIFEST

EXTRAS = "pip install 'paddlepool[sources]'"
BLOCK_BYTES = 1 << 20
MODEL_FILES = ("config.toml", "MODEL_CARD.md")
STAMPS = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified", "updated")
"""Keys by which file systems distinguish contents of the same size."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at the source. `stamp` changes with the content, as far as the source can tell."""

    path: str
    bytes: int
    stamp: str


@dataclass(slots=True)
class RemoteModel:
    """The model's own files by name, and the files of each sealed version by number and name."""

    files: dict[str, RemoteFile] = field(default_factory=dict)
    versions: dict[int, dict[str, RemoteFile]] = field(default_factory=dict)


class Source:
    """The repository at one address.

    **Invariant**: files whose names are not valid in a local repository are not read.
    """

    def __init__(self, address: str) -> None:
        """Raises ConfigError if the address is invalid or no installed package can read it."""
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ConfigError(f"a model source needs fsspec: {EXTRAS}") from error
        self.address = address
        try:
            self._files, root = url_to_fs(address, use_listings_cache=False)
        except ImportError as error:
            raise ConfigError(
                f"{address} needs a package that is not installed: {EXTRAS}"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{address}: {error}") from error
        self._root = str(root).rstrip("/")

    def models(self) -> Mapping[str, RemoteModel]:
        """All models that the source holds now, in one listing.

        Raises DownloadError if the source does not answer or holds no version at all: an empty
        listing is more likely a wrong address than an intention to serve nothing.
        """
        with self._translated("cannot be listed"):
            found = dict(self._files.find(self._root, detail=True))
        models: dict[str, RemoteModel] = {}
        for path, details in found.items():
            parts = PurePosixPath(str(path)[len(self._root) :].lstrip("/")).parts
            self._place(parts, _remote_file(str(path), details), models)
        for model in models.values():
            model.versions = {n: f for n, f in model.versions.items() if MANIFEST in f}
        models = {name: model for name, model in models.items() if model.versions}
        if not models:
            raise DownloadError(f"{self.address} holds no MODEL/VERSION/{MANIFEST}")
        return models

    def read(self, file: RemoteFile, *, limit: int) -> bytes:
        """Read a small file. Raises DownloadError on failure or above `limit` bytes."""
        if file.bytes > limit:
            raise DownloadError(f"{file.path} has {file.bytes} bytes, the limit is {limit}")
        return b"".join(self.blocks(file))

    def blocks(self, file: RemoteFile) -> Iterator[bytes]:
        """Yield the file's bytes. Raises DownloadError if there are fewer than were listed."""
        left = file.bytes
        with (
            self._translated(f"cannot be read: {file.path}"),
            self._files.open(file.path) as opened,
        ):
            while left > 0 and (block := opened.read(min(BLOCK_BYTES, left))):
                left -= len(block)
                yield block
        if left:
            raise DownloadError(f"{file.path} ended {left} bytes before its end")

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Raise DownloadError for any error: every library behind fsspec has its own classes."""
        try:
            yield
        except Exception as error:
            raise DownloadError(
                f"{self.address} {what}: {type(error).__name__}: {error}"
            ) from error

    @staticmethod
    def _place(parts: tuple[str, ...], file: RemoteFile, models: dict[str, RemoteModel]) -> None:
        if len(parts) not in (2, 3) or not MODEL_NAME.fullmatch(parts[0]):
            return
        model = models.setdefault(parts[0], RemoteModel())
        if len(parts) == 2 and parts[1] in MODEL_FILES:
            model.files[parts[1]] = file
        elif len(parts) == 3 and VERSION.fullmatch(parts[1]) and FILE_NAME.fullmatch(parts[2]):
            model.versions.setdefault(int(parts[1]), {})[parts[2]] = file


def _remote_file(path: str, details: Mapping[str, Any]) -> RemoteFile:
    size = details.get("size") or 0
    stamps = [str(details[name]) for name in STAMPS if details.get(name)]
    return RemoteFile(path, size, "|".join((str(size), *stamps)))


def fingerprint(files: Mapping[str, RemoteFile]) -> str:
    """Fingerprint of a version's files as the source lists them."""
    lines = (f"{name} {file.stamp}\n" for name, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()

"""Copies versions from a source to the local repository, and publishes them only if verified.

A source is a model repository in an object store, on a hub or in a directory, read with fsspec.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from paddlepool.contracts.errors import ConfigError, DownloadError, ManifestError
from paddlepool.models.repository.config import (
    MAX_CONFIG_BYTES,
    MODEL_NAME,
    ModelConfig,
    parse_config,
)
from paddlepool.models.repository.files import staging_name, write_atomically, write_synced
from paddlepool.models.repository.layout import VERSION, version_numbers
from paddlepool.models.repository.manifest import (
    FILE_NAME,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    read_contents,
    verify_files,
)

EXTRAS = "pip install 'paddlepool[sources]'"
BLOCK_BYTES = 1 << 20
CONFIG = "config.toml"
MODEL_FILES = (CONFIG, "MODEL_CARD.md")
STAMPS = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "LastModified", "updated")
"""Keys by which file systems distinguish contents of the same size."""
REFUSED = ".refused.json"
"""File of the local repository with the fingerprints of refused versions.

A refused version is not copied again until its fingerprint changes.
"""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at the source. `stamp` changes with the content, as far as the source can tell."""

    path: str
    bytes: int
    stamp: str


@dataclass(slots=True)
class RemoteModel:
    """Files of a model at the source.

    `files` are those of MODEL_FILES by name, `versions` the files of each sealed version by number
    and name.
    """

    files: dict[str, RemoteFile] = field(default_factory=dict)
    versions: dict[int, dict[str, RemoteFile]] = field(default_factory=dict)


class Source:
    """A model repository, or a folder of files, at an address that fsspec can read."""

    def __init__(self, address: str) -> None:
        """Raise ConfigError if the address is invalid or no installed package can read it."""
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
        """Return all models that the source holds now, from one listing.

        Files other than MODEL_FILES and those of versions, files with a name that no manifest can
        list, versions without a manifest and models without a version are left out. Raises
        DownloadError if the source does not answer or holds no version at all: an empty listing is
        more likely a wrong address than an intention to serve nothing.
        """
        with self._as_download_error("cannot be listed"):
            listing = dict(self._files.find(self._root, detail=True))
        models: dict[str, RemoteModel] = defaultdict(RemoteModel)
        for path, details in listing.items():
            size = details.get("size") or 0
            stamps = [str(details[name]) for name in STAMPS if details.get(name)]
            file = RemoteFile(path, size, "|".join((str(size), *stamps)))
            match PurePosixPath(path[len(self._root) :].lstrip("/")).parts:
                case [name, own] if own in MODEL_FILES:
                    models[name].files[own] = file
                case [name, number, own] if VERSION.fullmatch(number) and FILE_NAME.fullmatch(own):
                    models[name].versions.setdefault(int(number), {})[own] = file
        for model in models.values():
            model.versions = {n: f for n, f in model.versions.items() if MANIFEST in f}
        models = {n: m for n, m in models.items() if MODEL_NAME.fullmatch(n) and m.versions}
        if not models:
            raise DownloadError(f"{self.address} holds no MODEL/VERSION/{MANIFEST}")
        return models

    def copy(self, folder: Path, *, most_bytes: int, most_files: int) -> None:
        """Copy all files to `folder`, with their directories, except hidden files and directories.

        Raises DownloadError, also if the source holds no file or more than a limit, and OSError if
        `folder` cannot be written.
        """
        with self._as_download_error("cannot be listed"):
            listing = dict(self._files.find(self._root, detail=True))
        files = {}
        for path, details in listing.items():
            inner = PurePosixPath(path[len(self._root) :].lstrip("/"))
            if not any(part.startswith(".") for part in inner.parts):
                files[inner] = RemoteFile(path, details.get("size") or 0, "")
        total = sum(file.bytes for file in files.values())
        if not files:
            raise DownloadError(f"{self.address} holds no files, or does not exist")
        if total > most_bytes or len(files) > most_files:
            raise DownloadError(
                f"{self.address} holds {len(files)} files with {total} bytes; the limits are "
                f"{most_files} files and {most_bytes} bytes"
            )
        for inner, file in files.items():
            (folder / inner).parent.mkdir(parents=True, exist_ok=True)
            write_synced(folder / inner, self.blocks(file))

    def read(self, file: RemoteFile, *, limit: int) -> bytes:
        """Read a small file. Raises DownloadError on failure or above `limit` bytes."""
        if file.bytes > limit:
            raise DownloadError(f"{file.path} has {file.bytes} bytes, the limit is {limit}")
        return b"".join(self.blocks(file))

    def blocks(self, file: RemoteFile) -> Iterator[bytes]:
        """Yield the file's bytes. Raises DownloadError on failure or if bytes are missing."""
        left = file.bytes
        with (
            self._as_download_error(f"cannot be read: {file.path}"),
            self._files.open(file.path) as opened,
        ):
            while left > 0 and (block := opened.read(min(BLOCK_BYTES, left))):
                left -= len(block)
                yield block
        if left:
            raise DownloadError(f"{file.path} ended {left} bytes before its end")

    @contextmanager
    def _as_download_error(self, what: str) -> Iterator[None]:
        """Raise DownloadError for any error: every library behind fsspec has its own classes."""
        try:
            yield
        except Exception as error:
            raise DownloadError(
                f"{self.address} {what}: {type(error).__name__}: {error}"
            ) from error


@dataclass(slots=True)
class Changes:
    """What sync() did, with the names `MODEL/VERSION` or `MODEL/FILE`.

    `refused` and `damaged` map a name to the reason.
    """

    copied: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


def sync(source: Source, root: Path) -> Changes:
    """Copy what is new at `source` to the repository `root`; remove versions that `source` lacks.

    Only versions that the model's version policy selects are copied; with the policy "canary", all
    versions. A version is published after every byte has been compared with its manifest. If a file
    differs from the manifest, the version is refused until its listing at the source changes. A
    damaged local version is copied again.

    Local versions that the source does not have are removed if another version of the model is
    complete. Models that it does not have stay: a source cannot empty the local repository. Raises
    DownloadError if the source cannot be listed, and ConfigError if `root` cannot be written.
    """
    models = source.models()
    changes = Changes()
    try:
        root.mkdir(parents=True, exist_ok=True)
        refused = _read_refused(root)
        for name, model in sorted(models.items()):
            directory, copied = root / name, len(changes.copied)
            existed = directory.exists()
            try:
                _sync_model(source, directory, model, refused, changes)
            finally:
                # A source may list thousands of models without a single valid version.
                if not existed and directory.exists() and not version_numbers(directory):
                    shutil.rmtree(directory)
                    del changes.copied[copied:]
        listed = {f"{name}/{version}" for name in models for version in models[name].versions}
        refused = {label: digest for label, digest in refused.items() if label in listed}
        write_atomically(root / REFUSED, json.dumps(refused).encode())
    except OSError as error:
        raise ConfigError(f"the model repository cannot be written: {error}") from error
    return changes


def _sync_model(
    source: Source, directory: Path, model: RemoteModel, refused: dict[str, str], changes: Changes
) -> None:
    name = directory.name
    config = _sync_files(source, directory, model, changes)
    if config is None:
        return
    numbers, policy = tuple(sorted(model.versions, reverse=True)), config.version_policy
    candidates, count = policy.choose(numbers)
    if policy.kind == "canary":  # the newest is tried, and any other may serve
        candidates, count = numbers, len(numbers)
    complete = 0
    for version in (candidate for candidate in candidates if candidate in model.versions):
        if complete == count:
            break
        label, files = f"{name}/{version}", model.versions[version]
        stamps = "".join(f"{file} {files[file].stamp}\n" for file in sorted(files))
        fingerprint = hashlib.sha256(stamps.encode()).hexdigest()
        try:
            published = _is_published(source, directory / str(version), files)
        except DownloadError as error:  # the local version stays
            changes.refused[label] = error.message
            published = True
        except ManifestError as error:
            changes.damaged[label] = error.message
            published = False
        if published:
            complete += 1
        elif refused.get(label) == fingerprint:
            changes.refused[label] = "as before: it has not changed since it was refused"
        else:
            try:
                _copy_version(source, directory, version, files)
            except (DownloadError, ManifestError) as error:
                changes.refused[label] = error.message
                if isinstance(error, ManifestError):  # a DownloadError may be transient: retry it
                    refused[label] = fingerprint
                continue
            changes.copied.append(label)
            refused.pop(label, None)
            complete += 1
    if complete:  # not earlier: an older version may be the only one to serve
        for version in sorted(set(version_numbers(directory)) - set(model.versions)):
            with staging_name(directory) as dropped:
                (directory / str(version)).rename(dropped)
            changes.removed.append(f"{name}/{version}")


def _sync_files(
    source: Source, directory: Path, model: RemoteModel, changes: Changes
) -> ModelConfig | None:
    """Copy the model's own files and return its configuration; None if the source's is unusable.

    If the source has no configuration, returns the defaults. A file that cannot be read, or an
    invalid configuration, does not replace the old one. Raises OSError.
    """
    config = None if CONFIG in model.files else ModelConfig()
    for name, file in model.files.items():
        label = f"{directory.name}/{name}"
        try:
            text = source.read(file, limit=MAX_CONFIG_BYTES)
            if name == CONFIG:
                config = parse_config(text)
        except (DownloadError, ConfigError) as error:
            changes.refused[label] = error.message
            continue
        if _read(directory / name) != text:
            write_atomically(directory / name, text)
            changes.copied.append(label)
    return config


def _is_published(source: Source, local: Path, files: Mapping[str, RemoteFile]) -> bool:
    """Return whether the local version has the manifest that the source has.

    Raises ManifestError if the local version is damaged, and DownloadError if the source fails.
    """
    try:
        manifest = _read(local / MANIFEST)
    except OSError as error:
        raise ManifestError(f"{MANIFEST} cannot be read: {error}") from error
    if manifest is None or source.read(files[MANIFEST], limit=MAX_MANIFEST_BYTES) != manifest:
        return False
    verify_files(local, read_contents(local), low_priority=True)
    return True


def _copy_version(
    source: Source, model: Path, version: int, files: Mapping[str, RemoteFile]
) -> None:
    """Copy and publish one version; until it is complete, an existing one of that number stays.

    Raises ManifestError, DownloadError and OSError.
    """
    place = model / str(version)
    text = source.read(files[MANIFEST], limit=MAX_MANIFEST_BYTES)
    with staging_name(model) as staging:
        staging.mkdir(parents=True)
        write_synced(staging / MANIFEST, [text])
        label = f"{model.name}/{version}"
        manifest = read_contents(staging, label=label)
        for name, entry in manifest.files.items():
            file = files.get(name)
            if file is None or file.bytes != entry.bytes:
                size = "absent" if file is None else f"{file.bytes} bytes"
                raise ManifestError(
                    f"{label}: {name} is {size} at the source, its manifest says {entry.bytes}"
                )
        needed = sum(entry.bytes for entry in manifest.files.values())
        free = shutil.disk_usage(staging).free
        if needed > free:
            raise DownloadError(f"{label} has {needed} bytes, {free} are free on the disk")
        for name in manifest.files:
            write_synced(staging / name, source.blocks(files[name]))
        verify_files(staging, manifest, label=label)
        with staging_name(model) as replaced:
            if place.exists():
                place.rename(replaced)
            staging.rename(place)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _read_refused(root: Path) -> dict[str, str]:
    try:
        content = json.loads((root / REFUSED).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}


def lines_of(changes: Changes) -> Iterator[str]:
    """Yield one line for each change, for a terminal and a log."""
    yield from (f"damaged {label}: {reason}" for label, reason in changes.damaged.items())
    yield from (f"taken {label}" for label in changes.copied)
    yield from (f"removed {label}" for label in changes.removed)
    yield from (f"refused {label}: {reason}" for label, reason in changes.refused.items())


POLL_SECONDS = 0.2
END_SECONDS = 5.0
TIMEOUT_SECONDS = 600.0
"""Time limit for copying everything new; versions that were copied by then are kept."""
START_SECONDS = 30.0
"""Time limit at startup, if there is a version to serve and the source is polled again later."""

log = logging.getLogger(__name__)


def first_refresh(address: str, root: Path, *, polled: bool) -> bool:
    """Run refresh() at startup, and return whether it succeeded.

    The time limit is short if there are local versions and polls will follow (`polled`).
    """
    short = polled and any(root.glob(f"*/*/{MANIFEST}"))
    timeout = START_SECONDS if short else TIMEOUT_SECONDS
    return refresh(address, root, until=threading.Event(), timeout=timeout)


def refresh(
    address: str, root: Path, *, until: threading.Event, timeout: float = TIMEOUT_SECONDS
) -> bool:
    """Synchronise `root` with the source, log what happened, and return whether it succeeded.

    Runs sync() in a process of its own, because the server loads no cloud library; the log gets its
    last 50 lines. Stops that process after `timeout` seconds, or soon after `until` is set. Never
    raises an error: the server serves its local repository even if the source is gone.
    """
    command = [sys.executable, "-m", "paddlepool.cli", "models", "sync", address]
    command += ["--end-with-input", "--repository", str(root)]
    with ExitStack() as opened:
        try:
            memory = os.memfd_create("sync")
            printed = opened.enter_context(open(memory, encoding="utf-8", errors="replace"))
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closes when this process ends, for any reason
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            log.warning("the model source cannot be read: %s", error)
            return False
        give_up = time.monotonic() + timeout
        while child.poll() is None and time.monotonic() < give_up and not until.wait(POLL_SECONDS):
            pass
        late = child.poll() is None
        if late:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
            child.kill()  # does nothing if it has ended
        child.communicate()  # closes its input
        printed.seek(0)
        lines = [line for line in printed.read().split("\n") if line]
    for line in lines[-50:]:
        log.info("model source: %s", line)
    if late and not until.is_set():
        log.warning("the model source did not answer within %.0f s; the next poll retries", timeout)
    elif child.returncode:
        log.warning("the model source could not be read; the local copy stays in service")
    return child.returncode == 0

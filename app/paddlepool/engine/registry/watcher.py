"""Polls the model repository and makes the registry load what has changed."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from paddlepool.contracts.errors import ConfigError, ModelNotFound, PaddlepoolError
from paddlepool.engine.concurrency import in_thread
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.models.repository.manifest import MANIFEST

SETTLING_SECONDS = 0.5
"""Seconds until a changed repository is polled again, if the usual interval is longer."""

Stamp = tuple[int, int, int] | None
"""Inode, size and modification time (ns) of a file; None if it does not exist."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Stamps of one model's files: of its config.toml, and of the manifest of each version.

    `exists` is False if the repository has no directory of this model.
    """

    exists: bool = False
    config: Stamp = None
    versions: Mapping[int, Stamp] = field(default_factory=dict)


class RepositoryWatcher:
    """Makes the registry load each change of the repository once. Belongs to the event loop.

    What failed is retried after another change, or, if an OSError was the cause, at the next poll.

    The watcher reads only names, sizes and times of files: the registry verifies every byte. It
    acts when two polls in a row have found the same state: a file that is written in place is empty
    for a moment, and an empty config.toml is valid.

    **Invariant**: the state at the time when the watcher is built counts as loaded: see load_all().
    """

    def __init__(self, repository: ModelRepository, registry: ModelRegistry) -> None:
        """Read the current state of the repository; if it cannot be read, assume an empty one."""
        self._repository = repository
        self._registry = registry
        self._seen: dict[str, _Seen] = {}
        with contextlib.suppress(ConfigError):
            self._seen = self._scan()
        self._previous = dict(self._seen)

    async def load_all(self) -> None:
        """Load every model; later polls retry what an OSError prevented.

        Raises ConfigError or OSError if the repository itself cannot be read; later polls then load
        its models.
        """
        failed = list(self._seen)
        try:
            failed = await self._registry.load_all()
        finally:
            for name in failed:
                self._retry(name, self._seen.pop(name, _Seen()), _Seen())

    async def run(self, *, every: float, refresh: Callable[[], object] | None = None) -> None:
        """Poll every `every` seconds until cancelled, and sooner while a change waits.

        `refresh` is called in a thread before each poll; it may add new versions to the repository.
        An error of it or of a poll is logged, and the next poll follows as usual.
        """
        pause = every
        while True:
            await asyncio.sleep(pause)
            pause = every
            try:
                if refresh is not None:
                    await in_thread("refresh", refresh)
                if await self.poll():
                    pause = min(every, SETTLING_SECONDS)
            except PaddlepoolError as error:
                log.warning("the loaded models stay unchanged: %s", error.message)
            except Exception:
                log.exception("the repository cannot be polled")

    async def poll(self) -> bool:
        """Load new and changed models, and unload removed ones.

        Applies a change only if the previous poll saw the same state. Returns when the changes are
        made: True if another one waits for the next poll. An error of one model is logged; after an
        OSError, the next poll tries again. Raises ConfigError or OSError if the repository itself
        cannot be read; then nothing changes.
        """
        now = await in_thread("repository", self._scan)
        previous, self._previous = self._previous, now
        waiting = False
        for name in sorted(self._seen.keys() | now.keys()):
            old, new = self._seen.get(name, _Seen()), now.get(name, _Seen())
            if old == new:
                continue
            if new != previous.get(name, _Seen()):
                waiting = True
                continue
            self._seen[name] = new
            try:
                if new.versions:
                    same = old.versions.items() if old.config == new.config else ()
                    changed = [entry[0] for entry in new.versions.items() if entry not in same]
                    await self._registry.load(name, changed=changed)
                elif old.versions or not new.exists:
                    await self._registry.unload(name)
            except PaddlepoolError:
                pass  # logged, and index() has the reason; or the model is gone by now
            except OSError as error:
                self._retry(name, new, old)
                _log_unchanged(name, error)
            except Exception:
                log.exception("%s: the change could not be applied", name)
        return waiting

    def _retry(self, name: str, new: _Seen, old: _Seen) -> None:
        """Let the next poll load those versions of a model that failed, and no others.

        `old` and `new` are its state before and after the change. If the model as a whole failed,
        or no version did, the next poll applies the whole change again.
        """
        failed = self._registry.failed(name)
        if not failed or None in failed:
            # It exists: otherwise its removal before the next poll would be no change.
            self._seen[name] = replace(old, exists=True)
        else:
            stamps = {number: new.versions[number] for number in new.versions.keys() - failed}
            self._seen[name] = replace(new, versions=stamps)

    def _scan(self) -> dict[str, _Seen]:
        seen = {}
        for name in self._repository.names():
            directory = self._repository.root / name
            try:
                versions = self._repository.versions(name)
                sealed = {n: _stamp(directory / str(n) / MANIFEST) for n in versions}
                seen[name] = _Seen(True, _stamp(directory / "config.toml"), sealed)
            except (ModelNotFound, FileNotFoundError):
                continue  # just removed
            except OSError as error:
                if name in self._seen:
                    seen[name] = self._seen[name]
                _log_unchanged(name, error)
        return seen


def _stamp(path: Path) -> Stamp:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _log_unchanged(name: str, error: OSError) -> None:
    # The whole error, with its path: the fault is in the system, not in the model.
    log.warning("%s stays unchanged for now: %s", name, error)

"""The versions that are served at this moment, and the leases that requests take on them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from app.contracts.errors import ModelNotReady
from app.engine.registry.model import ServedModel


class ServedVersions:
    """Thread-safe. **Invariant**: the versions of a model are kept newest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, dict[int, ServedModel]] = {}
        self._closed = False

    def swap(self, model: ServedModel) -> ServedModel | None:
        """Serve the model in place of the same version; returns what was there.

        Raises ModelNotReady once closed: the model is then the caller's to close.
        """
        with self._lock:
            if self._closed:
                raise ModelNotReady("the server is shutting down")
            versions = self._models.get(model.name, {})
            old = versions.get(model.version)
            changed = {**versions, model.version: model}
            self._models[model.name] = dict(sorted(changed.items(), reverse=True))
            return old

    def remove(self, name: str, *, keep: Iterable[int] = ()) -> tuple[ServedModel, ...]:
        """Serve no version but those to keep; returns what was removed, to be drained."""
        kept = frozenset(keep)
        with self._lock:
            versions = self._models.pop(name, {})
            left = {version: model for version, model in versions.items() if version in kept}
            if left:
                self._models[name] = left
            return tuple(model for version, model in versions.items() if version not in kept)

    def acquire(self, name: str, version: int | None) -> ServedModel | None:
        """A leased model, to be released by the caller; the newest ready version unless named.

        Where no version is ready it is the newest, which then says why it takes no job.
        """
        with self._lock:
            versions = self._models.get(name, {})
            if version is not None:
                model = versions.get(version)
            elif len(versions) < 2:
                model = next(iter(versions.values()), None)
            else:
                found = (each for each in versions.values() if each.ready())
                model = next(found, next(iter(versions.values())))
            if model is not None:
                model.acquire()
            return model

    def versions(self, name: str) -> frozenset[int]:
        with self._lock:
            return frozenset(self._models.get(name, ()))

    def ready(self, name: str) -> bool:
        """Whether a version of this model takes jobs."""
        with self._lock:
            return any(model.ready() for model in self._models.get(name, {}).values())

    def all(self) -> tuple[ServedModel, ...]:
        """By name, newest version first; for showing only: requests take a lease."""
        with self._lock:
            return tuple(
                model for name in sorted(self._models) for model in self._models[name].values()
            )

    def close(self) -> tuple[ServedModel, ...]:
        """Serve nothing any more and take nothing in; returns what was served."""
        with self._lock:
            models = tuple(m for versions in self._models.values() for m in versions.values())
            self._models.clear()
            self._closed = True
            return models

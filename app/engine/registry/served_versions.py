"""The versions that are served now, and the leases that requests take on them."""

from __future__ import annotations

from collections.abc import Iterable

from app.contracts.errors import ModelNotReady
from app.engine.registry.model import ServedModel


class ServedVersions:
    """The served versions of all models.

    **Invariant**: the versions of a model are kept newest first. all(), ready() and versions() may
    be called in any thread, because the data they read is replaced and never changed.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[int, ServedModel]] = {}
        self._closed = False

    def swap(self, model: ServedModel) -> ServedModel | None:
        """Serve the model in place of the same version; returns the previous one, or None.

        Raises ModelNotReady once closed; the caller must then close the model.
        """
        if self._closed:
            raise ModelNotReady("the server is shutting down")
        versions = self._models.get(model.name, {})
        old = versions.get(model.version)
        changed = {**versions, model.version: model}
        newest_first = dict(sorted(changed.items(), reverse=True))
        self._models = {**self._models, model.name: newest_first}
        return old

    def remove(self, name: str, *, keep: Iterable[int] = ()) -> tuple[ServedModel, ...]:
        """Remove all versions but those in `keep`; returns the removed ones, to be drained."""
        kept = frozenset(keep)
        versions = self._models.get(name, {})
        left = {version: model for version, model in versions.items() if version in kept}
        others = {other: found for other, found in self._models.items() if other != name}
        self._models = {**others, name: left} if left else others
        return tuple(model for version, model in versions.items() if version not in kept)

    def acquire(self, name: str, version: int | None) -> ServedModel | None:
        """Lease the named version, or the newest that is ready; the caller must release it.

        If no version is ready, it is the newest, which gives the reason when a job is submitted.
        Returns None if there is no such version.
        """
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
        return frozenset(self._models.get(name, ()))

    def ready(self, name: str) -> bool:
        """Whether a version of this model accepts jobs."""
        return any(model.ready() for model in self._models.get(name, {}).values())

    def all(self) -> tuple[ServedModel, ...]:
        """Return all versions, by name, newest first; for display only: requests take a lease."""
        models = self._models
        return tuple(model for name in sorted(models) for model in models[name].values())

    def close(self) -> tuple[ServedModel, ...]:
        """Remove all versions and accept no new ones; returns the removed ones."""
        models, self._models, self._closed = self.all(), {}, True
        return models

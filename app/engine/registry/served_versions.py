"""The versions that are served at this moment, and the leases that requests take on them."""

from __future__ import annotations

from collections.abc import Iterable

from app.contracts.errors import ModelNotReady
from app.engine.registry.model import ServedModel


class ServedVersions:
    """**Invariant**: the versions of a model are kept newest first.

    What all(), ready() and versions() read is replaced and never changed: any thread may call them.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[int, ServedModel]] = {}
        self._closed = False

    def swap(self, model: ServedModel) -> ServedModel | None:
        """Serve the model in place of the same version; returns what was there.

        Raises ModelNotReady once closed: the model is then the caller's to close.
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
        """Serve no version but those to keep; returns what was removed, to be drained."""
        kept = frozenset(keep)
        versions = self._models.get(name, {})
        left = {version: model for version, model in versions.items() if version in kept}
        others = {other: found for other, found in self._models.items() if other != name}
        self._models = {**others, name: left} if left else others
        return tuple(model for version, model in versions.items() if version not in kept)

    def acquire(self, name: str, version: int | None) -> ServedModel | None:
        """A leased model, to be released by the caller; the newest ready version unless named.

        Where no version is ready it is the newest, which then says why it takes no job.
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
        """Whether a version of this model takes jobs."""
        return any(model.ready() for model in self._models.get(name, {}).values())

    def all(self) -> tuple[ServedModel, ...]:
        """By name, newest version first; for showing only: requests take a lease."""
        models = self._models
        return tuple(model for name in sorted(models) for model in models[name].values())

    def close(self) -> tuple[ServedModel, ...]:
        """Serve nothing any more and take nothing in; returns what was served."""
        models, self._models, self._closed = self.all(), {}, True
        return models

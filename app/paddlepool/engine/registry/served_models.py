"""What a registry serves now, and why it does not serve the rest."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paddlepool.contracts.errors import ModelNotFound, ModelNotReady, PaddlepoolError
from paddlepool.contracts.status import ModelStatus
from paddlepool.engine.registry.beside import Beside
from paddlepool.engine.registry.canaries import Canaries
from paddlepool.engine.registry.composed import ComposedModel, single
from paddlepool.engine.registry.composer import AnyModel
from paddlepool.engine.registry.load_history import NOT_LOADED, LoadHistory
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.thread_budget import ThreadBudget, thread_budget
from paddlepool.models.repository.layout import ModelRepository


class ServedModels:
    """The models of a ModelRegistry, for requests and for display.

    lease() and acquire() belong to the event loop. The others may be called in any thread, because
    the data they read is replaced, or copied in one step.
    """

    _repository: ModelRepository
    _history: LoadHistory
    _wanted: set[str]
    _models: Mapping[str, Mapping[int, AnyModel]]
    _cores: float
    canaries: Canaries
    beside: Beside

    @contextlib.contextmanager
    def lease(self, name: str, version: int | None = None) -> Iterator[ServedModel]:
        """Hold a version, as acquire() chooses it, during the block.

        Raises ModelNotFound, ModelNotReady, and InvalidParameter for a composed model.
        """
        model = self.acquire(name, version)
        try:
            yield single(model)
        finally:
            model.release()

    def acquire(self, name: str, version: int | None = None, *, spread: bool = False) -> AnyModel:
        """Lease and return this `version`; if None, the newest ready one, else the newest one.

        The caller must release() it. A version that is not ready may reject jobs. With `spread` and
        no `version`, a new version on trial gets its fraction of the requests. Raises
        ModelNotFound, and ModelNotReady if it is being loaded or could not be loaded.
        """
        versions = self._models.get(name, {})
        if version is not None:
            model = versions.get(version)
        elif spread and (beside := self.beside.answers(name)) is not None:
            model = beside
        elif len(versions) < 2:
            model = next(iter(versions.values()), None)
        else:
            ready = (model for model in versions.values() if model.ready())
            model = next(ready, next(iter(versions.values())))
        if model is not None:
            model.acquire()
            return model
        if self._history.knows(name, version) or (version is None and name in self._wanted):
            raise ModelNotReady("the model is in the repository but not ready")
        raise ModelNotFound("no model of this name and version is served")

    def all_served(self) -> tuple[AnyModel, ...]:
        """Return the versions served now, by name, newest first; for requests use acquire()."""
        models = self._models
        return tuple(model for name in sorted(models) for model in models[name].values())

    def served(self) -> tuple[ServedModel, ...]:
        """Return the versions served now that have instance groups, by name, newest first."""
        return tuple(model for model in self.all_served() if isinstance(model, ServedModel))

    def composed(self) -> tuple[ComposedModel, ...]:
        """Return the versions of composed models served now, by name, newest first."""
        return tuple(model for model in self.all_served() if isinstance(model, ComposedModel))

    def newest(self, name: str) -> AnyModel | None:
        """Return the newest version of a model that is served now, or None."""
        return next(iter(self._models.get(name, {}).values()), None)

    def find(self, name: str, version: int | None) -> AnyModel | None:
        """Return this version if it is served now, else None; for display only."""
        return next((m for m in self.all_served() if (m.name, m.version) == (name, version)), None)

    def find_composed(self, name: str, version: int | None) -> ComposedModel | None:
        """Return a composed model's `version` (the newest if None) if it is served, else None."""
        versions = [model for model in self.composed() if model.name == name]
        return next((model for model in versions if version in (None, model.version)), None)

    def index(self) -> tuple[ModelStatus, ...]:
        """Return the status of each version on disk or in memory, by model, newest first."""
        published: dict[str, tuple[int, ...]] = {}
        unsealed: dict[str, tuple[int, ...]] = {}
        with contextlib.suppress(PaddlepoolError):
            for name in self._repository.names():
                with contextlib.suppress(PaddlepoolError, OSError):  # this model cannot be read
                    published[name] = self._repository.versions(name)
                    unsealed[name] = self._repository.unsealed(name)
        rows = self._history.index(self.all_served(), published, unsealed)
        reasons = [self.canaries.reason(row.name, row.version) for row in rows]
        return tuple(
            replace(row, reason=reason) if reason and row.reason == NOT_LOADED else row
            for row, reason in zip(rows, reasons, strict=True)
        )

    def ready(self, name: str | None = None) -> bool:
        """Whether this model, or each of wanted(), has a ready version; False if none is wanted."""
        wanted = [name] if name is not None else self.wanted()
        models = self._models
        return bool(wanted) and all(
            any(model.ready() for model in models.get(key, {}).values()) for key in wanted
        )

    def wanted(self) -> tuple[str, ...]:
        """Return the models found at the start or loaded later, except those that were unloaded."""
        return tuple(sorted(self._wanted))

    def expected(self) -> tuple[str, ...]:
        """Return the models that should be served: wanted(), and those that could not be loaded.

        A model that failed while the server ran is not in wanted(): its failure takes nothing from
        anybody, so the server stays ready.
        """
        return tuple(sorted(self._wanted | self._history.failed_models()))

    def budget(self) -> ThreadBudget:
        """Return the thread budget of the models that are served now."""
        return thread_budget([model.config for model in self.served()], cores=self._cores)

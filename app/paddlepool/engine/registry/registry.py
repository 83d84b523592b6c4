"""Loads the versions that each model's policy selects, swaps them and drains old ones.

load ──► choose ──► read + verify ──► predictors open, self-test, warm up ──► swap ──► drain old
            │             │                        │                                     │
            └─────────────┴──── fails ─────────────┘                                   close
                                  └──► the old version stays; index() gives the reason

A composed model opens no predictor: it answers its sample request with its parts. When a part
changes, the composed models that use it are built again on the new version and tested, and all are
swapped in one step. If one of them fails its test, the part's old version stays.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from paddlepool.contracts import errors
from paddlepool.contracts.errors import ModelNotFound, ModelNotReady, PaddlepoolError
from paddlepool.contracts.ports import BuildPipeline
from paddlepool.contracts.resources import available_cores, give_memory_back
from paddlepool.contracts.status import Choice, ModelStatus
from paddlepool.engine.concurrency import in_thread, in_thread_or_inline
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.beside import Beside
from paddlepool.engine.registry.composed import ComposedModel, single
from paddlepool.engine.registry.composer import AnyModel, Composer
from paddlepool.engine.registry.load_history import NOT_LOADED, UNSEALED, LoadHistory
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.opener import Opener, StoredChoice
from paddlepool.engine.registry.promotions import Canaries, Canary, Promotions
from paddlepool.engine.registry.thread_budget import ThreadBudget, check_threads, thread_budget
from paddlepool.models.repository.layout import ModelRepository

T = TypeVar("T")

log = logging.getLogger(__name__)


class ModelRegistry:
    """Loads, serves and unloads model versions.

    Belongs to the event loop; index(), served(), ready(), wanted(), find() and budget() may be
    called in any thread, because the data they read is replaced or copied in one step.

    `drain_timeout`, in seconds, limits the wait for requests on an old version. `promotions` says
    which version of a model with the policy "canary" serves.
    """

    def __init__(
        self,
        repository: ModelRepository,
        *,
        context: EngineContext,
        build_pipeline: BuildPipeline,
        drain_timeout: float,
        cores: float | None = None,
        stored_choice: StoredChoice = lambda _files: None,
        promotions: Promotions | None = None,
    ) -> None:
        self._repository = repository
        self._cores = available_cores() if cores is None else cores
        self._context = context
        self._opener = Opener(context, build_pipeline, stored_choice, self._reopen)
        self._promotions = promotions or Promotions()
        self.canaries = Canaries(repository, self._promotions, context)
        self.beside = Beside(self._close_drained)
        self._drain_timeout = drain_timeout
        self._loading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._running: set[asyncio.Task[Any]] = set()
        self._wanted: set[str] = set()
        self._starting = False
        self._models: dict[str, dict[int, AnyModel]] = {}  # newest version first
        self._composing = asyncio.Lock()
        self._closed = False
        self._history = LoadHistory()
        self._composer = Composer(
            lambda name: next(iter(self._models.get(name, {}).values()), None),
            context=context,
            history=self._history,
            build_pipeline=build_pipeline,
        )

    async def load(self, name: str, *, changed: Collection[int] | None = None) -> None:
        """Serve the versions that the model's policy selects.

        Each one replaces its predecessor as soon as it is ready; the predecessor serves until then,
        and is drained and closed afterwards; with the policy "canary", after `rollback_seconds`.
        With `changed`, versions that are served already and are not in `changed` stay as they are.

        Raises ModelNotFound for an unknown model, ModelNotReady if the registry is closed, and
        ConfigError, ManifestError or BackendError if a version cannot be served: the one that it
        should replace continues to serve, and index() gives the reason. If nothing was served
        before, an older version is served instead, without an error. If the selected versions
        cannot be determined, nothing changes. Raises OSError if the system kept a version from
        being read, even if an older version is served.

        Like every change, the load is completed even if its caller is cancelled. After a load
        without an error, composed models with this part that failed to open are tried again.
        """
        await self._shielded(self._load_with_dependents(name, changed))

    async def _load_with_dependents(self, name: str, changed: Collection[int] | None) -> None:
        await self._load(name, changed)
        await self._load_dependents(name)

    async def _load_dependents(self, name: str) -> None:
        for composed, parts in tuple(self._composer.failed.items()):
            if name in parts:
                with contextlib.suppress(PaddlepoolError, OSError):  # index() has the reason
                    await self._load(composed, None)

    async def _load(self, name: str, changed: Collection[int] | None) -> None:
        try:
            # Checked first: an unknown name must not be remembered.
            await in_thread("repository", partial(self._repository.versions, name))
        except ModelNotFound:
            self._history.forget(name)
            raise
        async with self._changing(name):
            candidates, count, composed = await self._candidates(name)
            held = frozenset(self._models.get(name, ()))
            keep: set[int] = set()
            tried: set[int] = set()
            failures: list[PaddlepoolError | OSError] = []
            for candidate in candidates:
                if len(keep) == count:
                    break
                tried.add(candidate)
                stands_in = bool(failures) or (changed is not None and candidate not in changed)
                if not (candidate in held and stands_in):
                    try:
                        # While a composed model is built, none of its parts is replaced.
                        async with self._composing if composed else contextlib.nullcontext():
                            taken = self.beside.take(name, candidate)
                            built = taken or await self._build(name, candidate, composed)
                            await self._replace(built)
                    except ModelNotReady:
                        raise  # the registry was closed meanwhile
                    except (PaddlepoolError, OSError) as error:
                        failures.append(error)
                        if candidate not in held:
                            continue
                keep.add(candidate)
            self._history.consider(name, tried)
            await self._keep(name, keep or held)
            if keep and name in self._models:  # a part's change may have removed it
                current = next(iter(self._models[name].values()))
                await self.canaries.find(name, current)
                beside = self.beside.get(name)
                if beside is not None and (changed is None or beside.version > current.version):
                    await self.beside.close(name)  # its configuration or files may have changed
                # Not earlier: a new model must not make the server unready while it loads.
                self._wanted.add(name)
        for failure in failures:
            if held or not keep or isinstance(failure, OSError):
                raise failure

    async def _candidates(self, name: str) -> tuple[tuple[int, ...], int, bool]:
        """Return the versions to try, newest first, and how many of them to serve.

        The third value is whether the model is a composed one. Raises ManifestError if no version
        is published, ModelNotFound, ConfigError and OSError.
        """
        on_disk = self._repository
        with self._history.attempt(name, None):
            published = await in_thread("repository", partial(on_disk.versions, name))
            self._history.consider(name, published)
            if not published:
                unsealed = await in_thread("repository", partial(on_disk.unsealed, name))
                hint = f"; of version {unsealed[0]}, {UNSEALED}" if unsealed else ""
                raise errors.ManifestError(f"{name}: no version with a manifest is published{hint}")
            config = await in_thread("repository", partial(on_disk.config, name))
            serving = self._promotions.serving(name)
            current = next(iter(self._models.get(name, ())), None)
            if serving is not None:
                current = serving.version
            candidates, count = config.version_policy.choose(published, current)
            return candidates, count, bool(config.parts)

    async def open_beside(self, canary: Canary, fraction: float) -> None:
        """Open a version to answer a fraction of the requests, beside the one that serves.

        Closes it if the model was loaded again, or this registry closed, meanwhile. Raises the
        errors of load() except ModelNotReady.
        """
        await self._shielded(self._open_beside(canary, fraction))

    async def _open_beside(self, canary: Canary, fraction: float) -> None:
        async with self._changing(canary.name):
            model = await self._build(canary.name, canary.version, False)
            if (
                canary in self.canaries.all()
                and isinstance(model, ServedModel)
                and not self._closed
            ):
                await self.beside.put(model, fraction=fraction)
            else:
                await model.close()

    async def _replace(self, model: AnyModel, *, required: bool = True) -> None:
        """Serve the model in place of the served version with its number, if any.

        For `required` see _publish(). Raises ModelNotReady if the registry is closed, and what
        _publish() raises; the model is then closed, unless it is served already.
        """
        try:
            with self._history.attempt(model.name, model.version):
                versions = {**self._models.get(model.name, {}), model.version: model}
                await self._publish(model.name, versions, required=required)
        except BaseException:
            if model not in self.all_served():  # else retiring the version before has failed
                await model.close()
            raise
        log.info("%s: version %d is served", model.name, model.version)

    async def _keep(self, name: str, wanted: Collection[int]) -> None:
        """Serve only the `wanted` ones of the served versions of a model, and retire the others.

        A composed model that fails with the remaining versions of its part is not served any more.
        """
        before = self._models.get(name, {})
        versions = {version: model for version, model in before.items() if version in wanted}
        if versions != before:
            await self._publish(name, versions, required=False)

    async def _publish(
        self, name: str, versions: Mapping[int, AnyModel], *, required: bool = True
    ) -> None:
        """Serve exactly these versions of a model, and retire the others.

        The composed models that use the model are built again on its newest version, and everything
        is swapped in one step. If one of them fails, nothing changes, and its error is raised; or,
        if not `required`, it is not served any more and the others are swapped. Raises
        ModelNotReady if the registry is closed.
        """
        newest = versions[max(versions)] if versions else None
        before = list(self._models.get(name, {}).values())
        async with (
            contextlib.nullcontext() if isinstance(newest, ComposedModel) else self._composing
        ):
            outdated = [model for model in self.composed() if model.uses(name, but=newest)]
            rebuilt = [
                await self._composer.rebuilt(model, name, newest, required) for model in outdated
            ]
            if self._closed:
                await asyncio.gather(*(model.close() for model in rebuilt if model is not None))
                raise ModelNotReady("the server is shutting down")
            models = {**self._models, name: dict(sorted(versions.items(), reverse=True))}
            for old, new in zip(outdated, rebuilt, strict=True):
                others = {key: model for key, model in models[old.name].items() if model is not old}
                models[old.name] = others if new is None else {**others, new.version: new}
            self._models = {key: of_name for key, of_name in models.items() if of_name}
        for model in (*outdated, *before):  # a part's leases end with those of its composed models
            if model not in versions.values():
                await self._retire(model)

    async def _build(self, name: str, version: int, composed: bool) -> AnyModel:
        low_priority = bool(self._models) and not self._starting
        with self._history.attempt(name, version):
            if composed:
                read_composed = partial(self._repository.read_composed, name, version)
                return await self._composer.open(
                    await in_thread(f"{name}@{version} reading", read_composed), {}
                )
            read = partial(self._repository.read, name, version, low_priority=low_priority)
            files = await in_thread(f"{name}@{version} reading", read)
            check_threads(name, files.config, cores=self._cores)
            return await self._opener.open(files, low_priority=low_priority)

    async def adopt(self, served: ServedModel, choice: Choice) -> bool:
        """Serve a version with another default group, that of `choice`, without losing a request.

        Returns False if the version has been replaced or unloaded meanwhile. Raises ConfigError,
        ManifestError, WorkerCrashed, BackendError (also if a composed model fails with the group),
        and ModelNotReady if the registry is closed.
        """
        return await self._shielded(self._adopt(served, choice))

    async def _adopt(self, served: ServedModel, choice: Choice) -> bool:
        async with self._changing(served.name):
            if served not in self.served():
                return False
            await self._replace(
                await self._opener.start(served.files, choice, low_priority=True, before=served)
            )
        return True

    def _reopen(self, failed: ServedModel) -> None:
        """Open a model of "auto" again, with another group, if its default group cannot start."""
        if failed.files.config.first_group is not None and failed in self.served():
            self._task(self._reopened(failed))

    async def _reopened(self, failed: ServedModel) -> None:
        with contextlib.suppress(PaddlepoolError, OSError):  # the group has logged the reason
            async with self._changing(failed.name):
                if failed in self.served():
                    model = await self._opener.open(failed.files, low_priority=True, default=True)
                    await self._replace(model, required=False)  # another part may have failed, too
            await self._load_dependents(failed.name)

    @contextlib.asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[None]:
        """Allow one change of a model at a time, and free the memory of closed versions after it.

        A version's instances are in reference cycles: without an explicit collection they would
        stay in memory, with their arrays, for tens of reloads.
        """
        async with self._loading[name]:
            try:
                yield
            finally:
                await in_thread_or_inline("memory", give_memory_back)

    async def _retire(self, model: AnyModel) -> None:
        policy = model.config.version_policy
        newest = next(iter(self._models.get(model.name, ())), 0)
        seconds = policy.rollback_seconds if policy.kind == "canary" else 0
        if seconds and newest > model.version and isinstance(model, ServedModel):
            await self.beside.put(model, seconds=seconds)  # a promotion has replaced it
            return
        await self._close_drained(model)

    async def _close_drained(self, model: AnyModel) -> None:
        if not await model.drain(self._drain_timeout):
            log.warning(
                "%s: version %d is closed while requests still use it", model.name, model.version
            )
        await model.close()
        self._context.observer.retired(model=model.name, served=self._models.get(model.name, ()))

    async def load_all(self) -> list[str]:
        """Load every model of the repository at full speed: composed ones after all others.

        A model that cannot be loaded is UNAVAILABLE in index(), with its reason. Returns those that
        could not be read because of an OSError: they may be loaded later without a change. Raises
        ConfigError or OSError only if the repository itself cannot be read.
        """
        names = await in_thread("repository", self._repository.names)
        composed = await in_thread("repository", self._repository.composed_names)
        self._wanted.update(names)
        self._starting = True
        retry: dict[str, bool] = {}
        try:
            for some in (set(names) - composed, composed):  # parts first
                outcomes = await asyncio.gather(*map(self._try_load, some))
                retry |= zip(some, outcomes, strict=True)
        finally:
            self._starting = False
        if warning := self.budget().warning:
            log.warning("%s", warning)
        return [name for name in names if retry[name]]

    def failed(self, name: str) -> frozenset[int | None]:
        """Return the versions of a model that failed when last loaded: see LoadHistory.failed()."""
        return self._history.failed(name)

    async def _try_load(self, name: str) -> bool:
        """Load a model; return True if it failed because of the system, not of the model."""
        try:
            await self.load(name)
        except PaddlepoolError:
            pass  # already logged, and index() has the reason
        except OSError as error:
            log.error("%s: cannot be loaded: %s", name, error)
            return True
        except Exception:
            log.exception("%s: cannot be loaded", name)
        return False

    async def unload(self, name: str) -> None:
        """Stop serving a model; returns when its requests have ended, or after `drain_timeout`.

        Composed models that use it are not served either. A model that could not be loaded is
        forgotten. Raises ModelNotFound for any other model.
        """
        if name not in self._wanted and not self._history.knows(name, None):
            raise ModelNotFound("no model of this name is served")
        await self._shielded(self._unload(name))

    async def _shielded(self, change: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._task(change))

    def _task(self, change: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        running = asyncio.create_task(change, name="model change")
        self._running.add(running)  # the event loop keeps only weak references
        running.add_done_callback(self._running.discard)
        return running

    async def _unload(self, name: str) -> None:
        async with self._changing(name):
            self._wanted.discard(name)
            self._composer.failed.pop(name, None)
            await self._keep(name, ())
            self.canaries.forget(name)
            await self.beside.close(name)
            self._history.forget(name)
            log.info("%s: unloaded", name)

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

    def budget(self) -> ThreadBudget:
        """Return the thread budget of the models that are served now."""
        return thread_budget([model.config for model in self.served()], cores=self._cores)

    async def close(self) -> None:
        """End every predictor without draining; queued jobs fail, and later loads are refused."""
        served, self._models, self._closed = self.all_served(), {}, True
        await asyncio.gather(*(model.close() for model in served), self.beside.close_all())

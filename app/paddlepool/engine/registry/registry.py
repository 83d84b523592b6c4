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
from collections.abc import (
    AsyncIterator,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, TypeVar

from paddlepool.contracts.errors import ModelNotFound, ModelNotReady, PaddlepoolError
from paddlepool.contracts.ports import BuildPipeline
from paddlepool.contracts.resources import available_cores, give_memory_back
from paddlepool.contracts.status import Choice, VersionSet
from paddlepool.engine.concurrency import in_thread, in_thread_or_inline
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.beside import Beside
from paddlepool.engine.registry.canaries import Canaries, Canary
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.composer import AnyModel, Composer
from paddlepool.engine.registry.load_history import LoadHistory
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.opener import Opener, StoredChoice
from paddlepool.engine.registry.promotions import Promotions
from paddlepool.engine.registry.served_models import ServedModels
from paddlepool.engine.registry.thread_budget import check_threads
from paddlepool.models.repository.layout import ModelRepository

T = TypeVar("T")

log = logging.getLogger(__name__)


class ModelRegistry(ServedModels):
    """Loads, serves and unloads model versions.

    Belongs to the event loop; ServedModels says which methods may be called in any thread.

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
        self.canaries = Canaries(repository, self._promotions, context, build_pipeline)
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
            self.newest,
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
        for model in self.composed():
            if model.config.version_policy.kind == "canary" and model.uses(name, but=None):
                if await self.canaries.new_parts(model):  # it was promoted, but could not be loaded
                    with contextlib.suppress(PaddlepoolError, OSError):  # index() has the reason
                        await self._load(model.name, ())
                    continue
                async with self._changing(model.name):
                    if model in self.composed():
                        await self.canaries.find(model.name, model)
                        await self.beside.close_trial(model.name)
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
            candidates, count, composed = await self.canaries.candidates(
                name, self.newest(name), self._history
            )
            parts = await self.canaries.new_parts(self.newest(name))
            held = frozenset(self._models.get(name, ()))
            keep: set[int] = set()
            tried: set[int] = set()
            failures: list[PaddlepoolError | OSError] = []
            for candidate in candidates:
                if len(keep) == count:
                    break
                tried.add(candidate)
                unchanged = changed is not None and candidate not in changed and not parts
                if candidate not in held or not (failures or unchanged):
                    try:
                        if composed:
                            await self._compose(name, candidate, parts)
                        else:
                            taken = self.beside.take(name, VersionSet(candidate))
                            await self._replace(taken or await self._build(name, candidate))
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
                # The configuration or the files of the version beside may have changed.
                await (self.beside.close if changed is None else self.beside.close_trial)(name)
                # Not earlier: a new model must not make the server unready while it loads, nor
                # if it cannot be loaded.
                self._wanted.add(name)
        for failure in failures:
            if held or not keep or isinstance(failure, OSError):
                raise failure

    async def _compose(self, name: str, version: int, parts: Mapping[str, int]) -> None:
        """Open a composed model, and serve it with these versions of its parts, in one step."""
        current = self.newest(name)
        versions = {**(current.version_set.parts if current is not None else {}), **parts}
        async with contextlib.AsyncExitStack() as changing:
            for part in sorted(versions):
                await changing.enter_async_context(self._changing(part))
            taken = self.beside.take(name, VersionSet(version, versions))
            opened = [] if taken is not None else await self._build_parts(parts)
            async with self._composing:
                model = taken or await self._compose_of(name, version, opened)
                own_parts: tuple[AnyModel, ...] = ()
                if isinstance(model, ComposedModel):
                    own_parts, model.own_parts = model.own_parts, ()
                await self._replace(model, *own_parts)

    async def _build_parts(self, parts: Mapping[str, int]) -> list[ServedModel]:
        opened: list[ServedModel] = []
        try:
            for part, number in parts.items():
                opened.append(await self._build(part, number))
        except BaseException:
            await self._close_unserved(opened)
            raise
        return opened

    async def _compose_of(
        self, name: str, version: int, parts: Sequence[ServedModel]
    ) -> ComposedModel:
        """Open a composed model with these parts as its own, in place of those that serve.

        The caller holds `_composing`: meanwhile, none of its parts is replaced.
        """
        try:
            with self._attempt(name, version):
                files = await self.canaries.read_composed(name, version)
                model = await self._composer.open(files, {part.name: part for part in parts})
        except BaseException:
            await self._close_unserved(parts)
            raise
        model.own_parts = tuple(parts)
        return model

    async def open_beside(self, canary: Canary, fraction: float) -> None:
        """Open a version to answer a fraction of the requests, beside the one that serves.

        Closes it if the model was loaded again, or this registry closed, meanwhile. Raises the
        errors of load() except ModelNotReady.
        """
        await self._shielded(self._open_beside(canary, fraction))

    async def _open_beside(self, canary: Canary, fraction: float) -> None:
        async with self._changing(canary.name):
            current = self.newest(canary.name)
            if isinstance(current, ComposedModel):
                parts = dict(canary.parts.items() - current.version_set.parts.items())
                opened = await self._build_parts(parts)
                async with self._composing:
                    model = await self._compose_of(canary.name, canary.version, opened)
                    await self._put_beside(canary, model, fraction)
            else:
                served = await self._build(canary.name, canary.version)
                await self._put_beside(canary, served, fraction)

    async def _put_beside(self, canary: Canary, model: AnyModel, fraction: float) -> None:
        if canary in self.canaries.all() and not self._closed:
            await self.beside.put(model, fraction=fraction)
        else:
            await self._close_drained(model)

    async def _replace(self, model: AnyModel, *parts: AnyModel, required: bool = True) -> None:
        """Serve the model in place of the served version with its number, if any.

        With `parts`, a composed model and its parts replace all their versions in one step. For
        `required` see _publish(). Raises ModelNotReady if the registry is closed, and what
        _publish() raises; the models are then closed, unless they are served already.
        """
        try:
            with self._attempt(model.name, model.version):
                others = {} if parts else self._models.get(model.name, {})
                changes = {model.name: {**others, model.version: model}}
                changes |= {part.name: {part.version: part} for part in parts}
                await self._publish(changes, required=required)
        except BaseException:
            await self._close_unserved((model, *parts))
            raise
        for served in (model, *parts):
            log.info("%s: version %d is served", served.name, served.version)

    async def _close_unserved(self, models: Iterable[AnyModel]) -> None:
        """Close those of the models that are not served."""
        served = self.all_served()
        await asyncio.gather(*(model.close() for model in models if model not in served))

    async def _keep(self, name: str, wanted: Collection[int]) -> None:
        """Serve only the `wanted` ones of the served versions of a model, and retire the others.

        A composed model that fails with the remaining versions of its part is not served any more.
        """
        before = self._models.get(name, {})
        versions = {version: model for version, model in before.items() if version in wanted}
        if versions != before:
            await self._publish({name: versions}, required=False)

    async def _publish(
        self, changes: Mapping[str, Mapping[int, AnyModel]], *, required: bool = True
    ) -> None:
        """Serve exactly these versions of one or more models, and retire the others.

        Other composed models that use them are built again on the newest versions, and everything
        is swapped in one step. If one of them fails, nothing changes, and BackendError is raised;
        or, if not `required`, it is not served any more and the others are swapped. Raises
        ModelNotReady if the registry is closed.
        """
        newest = {
            key: of_name[max(of_name)] if of_name else None for key, of_name in changes.items()
        }
        before = [model for name in changes for model in self._models.get(name, {}).values()]
        composing = any(isinstance(model, ComposedModel) for model in newest.values())
        async with contextlib.nullcontext() if composing else self._composing:
            outdated = [
                model
                for model in self.composed()
                if model.name not in changes
                and any(model.uses(name, but=part) for name, part in newest.items())
            ]
            rebuilt: list[ComposedModel | None] = []
            try:
                for model in outdated:
                    rebuilt.append(await self._composer.rebuilt(model, newest, required))
                if self._closed:
                    raise ModelNotReady("the server is shutting down")
            except BaseException:
                await asyncio.gather(*(model.close() for model in rebuilt if model is not None))
                raise
            models = {**self._models}
            for name, versions in changes.items():
                models[name] = dict(sorted(versions.items(), reverse=True))
            for old, new in zip(outdated, rebuilt, strict=True):
                others = {key: model for key, model in models[old.name].items() if model is not old}
                models[old.name] = others if new is None else {**others, new.version: new}
            self._models = {key: of_name for key, of_name in models.items() if of_name}
        await self.beside.close_users(newest)
        # A part's leases end with those of its composed models.
        retired = [
            model
            for model in (*outdated, *before)
            if model not in changes.get(model.name, {}).values()
        ]
        while retired:
            await self._retire(retired.pop(0), retired)

    async def _build(self, name: str, version: int) -> ServedModel:
        low_priority = bool(self._models) and not self._starting
        with self._attempt(name, version):
            read = partial(self._repository.read, name, version, low_priority=low_priority)
            files = await in_thread(f"{name}@{version} reading", read)
            check_threads(name, files.config, cores=self._cores)
            return await self._opener.open(files, low_priority=low_priority)

    def _attempt(self, name: str, version: int) -> contextlib.AbstractContextManager[None]:
        """Mark a version as LOADING during the block: see LoadHistory.attempt()."""
        serves = self.find(name, version) is not None
        return self._history.attempt(name, version, serves=serves)

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
        """Open a model again whose default group was chosen and cannot start: see Opener.open()."""
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

    async def _retire(self, model: AnyModel, others: list[AnyModel]) -> None:
        """Close a version, or keep it open for a rollback if a promotion has replaced it.

        A composed model then keeps those of its parts that are among the `others`, which are to be
        retired, too. They are removed from that list.
        """
        policy, serving = model.config.version_policy, self._promotions.serving(model.name)
        seconds = policy.rollback_seconds if policy.kind == "canary" else 0
        if not seconds or serving is None or serving.previous_set != model.version_set:
            await self._close_drained(model)
            return
        if isinstance(model, ComposedModel):
            parts = dict.fromkeys(model.parts.values())
            model.own_parts = tuple(part for part in parts if part in others)
            others[:] = [other for other in others if other not in model.own_parts]
        await self.beside.put(model, seconds=seconds)

    async def _close_drained(self, model: AnyModel) -> None:
        if not await model.drain(self._drain_timeout):
            log.warning(
                "%s: version %d is closed while requests still use it", model.name, model.version
            )
        await model.close()
        self._context.observer.retired(model=model.name, served=self._models.get(model.name, ()))
        if isinstance(model, ComposedModel):
            for part in model.own_parts:
                await self._close_drained(part)

    async def load_all(self) -> list[str]:
        """Load every model of the repository at full speed: composed ones after all others.

        A model that cannot be loaded is UNAVAILABLE in index(), with its reason. Returns those that
        could not be read because of an OSError: a later attempt may succeed. Raises ConfigError or
        OSError only if the repository itself cannot be read.
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
        """Stop serving a model, and the composed models that use it.

        Waits up to `drain_timeout` for the requests of each version. A model that could not be
        loaded is forgotten. Raises ModelNotFound for an unknown model.
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

    async def close(self) -> None:
        """End every predictor without draining; queued jobs fail, and later loads are refused."""
        served, self._models, self._closed = self.all_served(), {}, True
        await asyncio.gather(*(model.close() for model in served), self.beside.close_all())

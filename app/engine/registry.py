"""What is loaded now: one served version of each model, swapped whole and drained through leases.

load ──► read + verify ──► predictors open, self-test, warm up ──► swap ──► drain old ──► close
              │                           │
              └───── fails ───────────────┴──► the old version serves on; index() says why
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from app.engine.budget import ThreadBudget, available_cores, refuse_absurd, thread_budget
from app.engine.group import Surroundings
from app.engine.load_history import LoadHistory
from app.engine.model import ServedModel
from app.engine.ports import Clock, EngineObserver, Pipeline, PredictorFactory, ServedModelInfo
from app.engine.repository import ModelRepository
from app.engine.status import ModelStatus
from app.errors import ManifestError, ModelNotFound, ModelNotReady, PaddlepoolError

BuildPipeline = Callable[[ServedModelInfo], Pipeline | None]

log = logging.getLogger(__name__)


class ModelRegistry:
    """Thread-safe. `drain_timeout` in seconds bounds the wait for requests on an old version;
    `max_resident_bytes` is the memory at which a predictor process is replaced by a fresh one."""

    def __init__(
        self,
        repository: ModelRepository,
        *,
        open_predictor: PredictorFactory,
        build_pipeline: BuildPipeline,
        observer: EngineObserver,
        clock: Clock = time.monotonic,
        cores: float | None = None,
        drain_timeout: float = 35.0,
        max_resident_bytes: int = 2 << 30,
    ) -> None:
        self._repository = repository
        self._around = Surroundings(
            open_predictor=open_predictor,
            observer=observer,
            clock=clock,
            max_resident_bytes=max_resident_bytes,
        )
        self._build_pipeline = build_pipeline
        self._cores = available_cores() if cores is None else cores
        self._drain_timeout = drain_timeout
        self._lock = threading.Lock()
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._wanted: set[str] = set()
        self._serving: dict[str, ServedModel] = {}
        self._history = LoadHistory()
        self._closed = False

    def load(self, name: str, version: int | None = None) -> None:
        """Serve a version of a model, the newest fit one unless named; blocks until it is ready.

        The version served before goes on until the new one has proven itself, then it is drained
        and closed. Raises ModelNotFound, ConfigError, ManifestError or BackendError: nothing has
        changed then, and index() gives the reason.
        """
        self._repository.versions(name)  # an unknown name leaves no trace
        with self._loading[name]:
            with self._lock:
                self._wanted.add(name)
            model = self._build_newest(name) if version is None else self._build(name, version)
            with self._lock:
                closed, old = self._closed, self._serving.get(name)
                if not closed:
                    self._serving[name] = model
            if closed:
                model.close()
                raise ModelNotReady("the server is shutting down")
            log.info("%s: version %d is served", name, model.version)
            if old is not None:
                self._retire(old)

    def _build_newest(self, name: str) -> ServedModel:
        """The newest version that is fit. Falls back to older ones only while none is served."""
        with self._history.attempt(name, None):
            versions = self._repository.versions(name)
            if not versions:
                raise ManifestError(f"{name}: no version with a manifest is published")
        for version in versions[:-1]:
            try:
                return self._build(name, version)
            except PaddlepoolError:
                if name in self._serving:
                    raise
        return self._build(name, versions[-1])

    def _build(self, name: str, version: int) -> ServedModel:
        with self._history.attempt(name, version):
            try:
                files = self._repository.read(name, version)
                refuse_absurd(name, files.config, cores=self._cores)
                model = ServedModel(files, around=self._around)
                try:
                    model.pipeline = self._build_pipeline(model.info)
                    model.start()
                except BaseException:
                    model.close()
                    raise
            except PaddlepoolError as error:
                log.error("%s: version %d is not served: %s", name, version, error.message)
                raise
        return model

    def _retire(self, model: ServedModel) -> None:
        if not model.drain(self._drain_timeout):
            log.warning(
                "%s: version %d is closed although requests still hold it",
                model.name,
                model.version,
            )
        model.close()

    def load_all(self) -> None:
        """Load every model of the repository, several at a time; blocks.

        A bad model stays UNAVAILABLE with its reason. Raises ConfigError only when the repository
        itself cannot be read.
        """
        names = self._repository.names()
        with self._lock:
            self._wanted.update(names)
        with ThreadPoolExecutor(max(1, len(names)), thread_name_prefix="load") as loaders:
            list(loaders.map(self._try_load, names))
        if warning := self.budget().warning:
            log.warning("%s", warning)

    def _try_load(self, name: str) -> None:
        try:
            self.load(name)
        except PaddlepoolError:
            pass  # logged by then, and index() has the reason
        except Exception:
            log.exception("%s: cannot be loaded", name)

    def unload(self, name: str) -> None:
        """Serve the model no longer; blocks until its requests have ended. Raises ModelNotFound."""
        if name not in self._wanted:
            raise ModelNotFound("no model of this name is served")
        with self._loading[name]:
            with self._lock:
                model = self._serving.pop(name, None)
                self._wanted.discard(name)
            if model is None:
                return
            self._retire(model)
            log.info("%s: unloaded", name)

    @contextlib.contextmanager
    def lease(self, name: str, version: int | None = None) -> Iterator[ServedModel]:
        """Hold one version for the length of a request. Raises ModelNotFound, ModelNotReady."""
        with self._lock:
            model = self._serving.get(name)
            if model is not None and version in (None, model.version):
                model.acquire()
            else:
                raise self._not_served(name, version)
        try:
            yield model
        finally:
            model.release()

    def _not_served(self, name: str, version: int | None) -> PaddlepoolError:
        if name in self._wanted and (version is None or self._history.knows(name, version)):
            return ModelNotReady("the model is in the repository but not ready")
        return ModelNotFound("no model of this name and version is served")

    def served(self) -> tuple[ServedModel, ...]:
        """What is served now, by name; for showing only: requests take a lease."""
        with self._lock:
            return tuple(self._serving[name] for name in sorted(self._serving))

    def index(self) -> tuple[ModelStatus, ...]:
        """Every model and version of the repository or in memory, newest version first."""
        published: dict[str, tuple[int, ...]] = {}
        with contextlib.suppress(PaddlepoolError):
            for name in self._repository.names():
                published[name] = self._repository.versions(name)
        return self._history.index(self.served(), published)

    def ready(self, name: str | None = None) -> bool:
        """Whether this model, or every model that should be served, takes jobs."""
        with self._lock:
            wanted = [name] if name is not None else sorted(self._wanted)
            models = [self._serving.get(each) for each in wanted]
        return bool(models) and all(model is not None and model.ready() for model in models)

    def wanted(self) -> tuple[str, ...]:
        """Models that should be served: loaded, or tried, and not unloaded since."""
        with self._lock:
            return tuple(sorted(self._wanted))

    def budget(self) -> ThreadBudget:
        """The threads of everything served now against the cores."""
        return thread_budget((model.config for model in self.served()), cores=self._cores)

    def drain(self, timeout: float) -> bool:
        """Wait until no request holds any version; new ones are not refused. False on time-out."""
        deadline = time.monotonic() + timeout
        return all(m.drain(max(0.0, deadline - time.monotonic())) for m in self.served())

    def close(self) -> None:
        """End every predictor at once; what is still queued fails, and nothing loads any more."""
        with self._lock:
            self._closed = True
            models = list(self._serving.values())
            self._serving.clear()
        with ThreadPoolExecutor(max(1, len(models)), thread_name_prefix="close") as closers:
            list(closers.map(ServedModel.close, models))

"""Published versions that have yet to prove themselves before they serve."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from paddlepool.contracts.errors import ConfigError, ManifestError, ModelNotFound
from paddlepool.contracts.ports import BuildPipeline
from paddlepool.contracts.status import VersionSet
from paddlepool.engine.concurrency import in_thread
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.composer import AnyModel
from paddlepool.engine.registry.load_history import UNSEALED, LoadHistory
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.promotions import Promotions, Serving
from paddlepool.models.repository.config import VersionPolicy
from paddlepool.models.repository.layout import ComposedFiles, ModelRepository

PROVEN = VersionPolicy(kind="canary")


@dataclass(slots=True, eq=False)
class Canary:
    """A published version that is newer than the one that serves.

    Each load of the model makes a new object, even for the same version. `problem` is why the
    version cannot be tried now; empty if it can. For a composed model, `parts` has the version of
    each model that is a part, and at least one of all these versions is newer.
    """

    name: str
    version: int
    problem: str = ""
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def version_set(self) -> VersionSet:
        return VersionSet(self.version, self.parts)


class Canaries:
    """The newest version of each model with the policy "canary", unless it serves."""

    def __init__(
        self,
        repository: ModelRepository,
        promotions: Promotions,
        context: EngineContext,
        build_pipeline: BuildPipeline,
    ) -> None:
        self._repository, self._promotions = repository, promotions
        self._context, self._build_pipeline = context, build_pipeline
        self._newest: dict[str, Canary] = {}

    def all(self) -> tuple[Canary, ...]:
        """Return the new versions; may be called in any thread."""
        return tuple(self._newest.values())

    def reason(self, model: str, version: int | None) -> str:
        """Return why a published version is not served; "" if that is not known."""
        for canary in self.all():
            if (canary.name, canary.version) == (model, version) and canary.problem:
                return f"canary: {canary.problem}"
        return self._promotions.reason(model, version)

    def read(self, canary: Canary) -> ServedModel:
        """Read and verify a version, blocking, without starting it. May be called in any thread.

        Raises ModelNotFound, ConfigError, ManifestError and OSError.
        """
        return self._read(canary.name, canary.version)

    def _read(self, name: str, version: int) -> ServedModel:
        files = self._repository.read(name, version, low_priority=True)
        return ServedModel(files, context=self._context)

    async def compose(self, name: str, versions: VersionSet) -> ComposedModel:
        """Read a composed model and its parts in these versions, and build its pipeline.

        No predictor is opened. Raises as read() does, BackendError if the codec processes do not
        start, and ConfigError also if the parts do not fit the task or [parts] has changed.
        """

        def read() -> tuple[ComposedFiles, dict[str, ServedModel]]:
            files = self._repository.read_composed(name, versions.version)
            if set(files.config.parts.values()) != versions.parts.keys():
                raise ConfigError("its [parts] have changed since it was loaded")
            models = {part: self._read(part, number) for part, number in versions.parts.items()}
            return files, {part: models[model] for part, model in files.config.parts.items()}

        files, parts = await in_thread(f"{name}@{versions.version} reading", read)
        context = self._context
        model = ComposedModel(files, parts, observer=context.observer, clock=context.clock)
        await model.build(self._build_pipeline)
        return model

    async def candidates(
        self, name: str, serves: AnyModel | None, history: LoadHistory
    ) -> tuple[tuple[int, ...], int, bool]:
        """Return the versions to try, newest first, and how many of them to serve.

        With the policy "canary", the recorded version is the last one if its files were replaced.
        The third value is whether the model is a composed one. `serves` is the newest version that
        is served now. A part of a composed model with the policy "canary" keeps its version: only a
        load of that model changes it. Raises ManifestError if no version is published,
        ModelNotFound, ConfigError and OSError.
        """
        on_disk = self._repository
        current, replaced = None if serves is None else serves.version, False
        with history.attempt(name, None, serves=serves is not None):
            published = await in_thread("repository", partial(on_disk.versions, name))
            history.consider(name, published)
            if not published:
                unsealed = await in_thread("repository", partial(on_disk.unsealed, name))
                hint = f"; of version {unsealed[0]}, {UNSEALED}" if unsealed else ""
                raise ManifestError(f"{name}: no version with a manifest is published{hint}")
            config = await in_thread("repository", partial(on_disk.config, name))
            policy, serving = config.version_policy, self._promotions.serving(name)
            whole = await in_thread("repository", partial(self._whole_of, name))
            if whole is not None:
                policy, serving = PROVEN, self._promotions.serving(whole)
                if current is None and serving is not None:
                    current = serving.parts.get(name)
            elif serving is not None:
                current = serving.version
                replaced = await in_thread("repository", partial(self._replaced, serving))
            candidates, count = policy.choose(published, current)
            if replaced and policy.kind == "canary":
                # These files must prove themselves, unless no older version can be served.
                candidates = (*candidates[1:], *candidates[:1])
            return candidates, count, bool(config.parts)

    def _replaced(self, serving: Serving) -> bool:
        """Whether the version that should serve has other files than those that were recorded."""
        if serving.sha256:
            with contextlib.suppress(ManifestError, ModelNotFound):  # its load gives the reason
                found = self._repository.fingerprint(serving.model, serving.version)
                return found != serving.sha256
        return False

    def _whole_of(self, name: str) -> str | None:
        """Return the composed model with which a part is judged, or None.

        While that model's config.toml cannot be read, the recorded one counts.
        """
        whole, recorded = self._repository.judged_with(name), self._promotions.whole_of(name)
        if whole is None and recorded is not None:
            try:
                self._repository.config(recorded)
            except (ConfigError, OSError):
                return recorded
            except ModelNotFound:
                return None
        return whole

    async def new_parts(self, model: AnyModel | None) -> Mapping[str, int]:
        """Return the version of each part that should serve instead of the present one.

        It is the recorded version, or the newest one before it if that is not published any more.
        The result is empty if `model` is not composed. Raises OSError.
        """
        if not isinstance(model, ComposedModel):
            return {}
        serving = self._promotions.serving(model.name)

        def read() -> dict[str, int]:
            own = model.version_set.parts
            recorded = own if serving is None else {**own, **serving.parts}
            chosen = {part: self._newest_version(part, 0, recorded[part]) for part in own}
            return {part: number for part, number in chosen.items() if number not in (0, own[part])}

        return await in_thread("repository", read)

    async def read_composed(self, name: str, version: int) -> ComposedFiles:
        """Read and verify a version of a composed model.

        Raises as read() does, and ConfigError if the model has the policy "canary" and a part has a
        policy of its own or belongs to another such model.
        """

        def read() -> ComposedFiles:
            files = self._repository.read_composed(name, version)
            if files.config.version_policy.kind == "canary":
                for part, model in files.config.parts.items():
                    with contextlib.suppress(ModelNotFound, OSError):  # the composer gives a reason
                        self._check_part(name, part, model)
            return files

        return await in_thread(f"{name}@{version} reading", read)

    def _check_part(self, name: str, part: str, model: str) -> None:
        if self._repository.config(model).version_policy != VersionPolicy():
            raise ConfigError(
                f"its part {part}, model {model}, has a [version_policy] of its own: with kind = "
                f"'canary', {name} and its parts are judged as a whole"
            )
        if (whole := self._repository.judged_with(model)) not in (None, name):
            raise ConfigError(f"its part {part}, model {model}, is judged with {whole}")

    def forget(self, name: str) -> None:
        self._newest = {key: canary for key, canary in self._newest.items() if key != name}

    async def find(self, name: str, model: AnyModel) -> None:
        """Look for a published version newer than `model`, which serves now; all() then returns it.

        Does so only for the policy "canary", and then also records that `model` serves, unless
        there is a record with these parts; of the recorded version, it records the fingerprint.
        With another policy, removes the record. Raises OSError.
        """
        self.forget(name)
        serving, own = self._promotions.serving(name), model.version_set
        if model.config.version_policy.kind == "canary":
            recorded = serving
            if serving is None or serving.parts.keys() != own.parts.keys():
                at = 0.0 if serving is None else serving.at
                serving = Serving(model=name, version=own.version, parts=dict(own.parts), at=at)
            if serving.version_set == own and not own.parts:
                serving = serving.model_copy(update={"sha256": model.sha256()})
            if serving != recorded:
                await in_thread("promotions", partial(self._promotions.serve, name, serving))
            newest = await in_thread("repository", partial(self._newest_set, name, own))
            if newest != own:
                canary = Canary(name, newest.version, parts=newest.parts)
                self._newest = {**self._newest, name: canary}
        elif serving is not None:
            await in_thread("promotions", partial(self._promotions.serve, name, None))

    def _newest_set(self, name: str, own: VersionSet) -> VersionSet:
        """Return the newest version, with the newest version of each part.

        A version that was rejected in another set is left out: what serves now takes its place.
        """
        newest = VersionSet(
            self._newest_version(name, own.version),
            {part: self._newest_version(part, number) for part, number in own.parts.items()},
        )
        trials = self._promotions.trials(name)
        if not own.parts or any(trial.version_set == newest for trial in trials):
            return newest
        rejected = {
            (model, number)
            for trial in trials
            if trial.state == "rejected"
            for model, number in ((name, trial.version), *trial.parts.items())
        }
        return VersionSet(
            own.version if (name, newest.version) in rejected else newest.version,
            {
                part: own.parts[part] if (part, number) in rejected else number
                for part, number in newest.parts.items()
            },
        )

    def _newest_version(self, name: str, current: int, most: float = math.inf) -> int:
        """Return the newest published version up to `most`; `current` if that is newer."""
        with contextlib.suppress(ModelNotFound):
            published = self._repository.versions(name)
            return max((current, *(number for number in published if number <= most)))
        return current

"""Opens composed models on the served versions of their parts."""

from collections.abc import Callable, Mapping

from paddlepool.contracts.errors import BackendError, ConfigError, PaddlepoolError
from paddlepool.contracts.ports import BuildPipeline
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.load_history import LoadHistory
from paddlepool.engine.registry.model import ServedModel
from paddlepool.models.repository.layout import ComposedFiles

AnyModel = ServedModel | ComposedModel
Newest = Mapping[str, AnyModel | None]
"""Maps names of models to the version that is newest after a change; None if no version is left."""


def composed_itself(part: str, name: str) -> ConfigError:
    """Return the error about a part of a composed model whose model, `name`, is itself composed."""
    return ConfigError(f"its part {part}, model {name}, is composed itself")


class Composer:
    """Opens composed models for a registry.

    `newest` returns the newest served version of a model, or None. `failed` maps the composed
    models that are not served because opening them failed to the names of the models of their
    parts: a change of one of these is a reason to try again.
    """

    def __init__(
        self,
        newest: Callable[[str], AnyModel | None],
        *,
        context: EngineContext,
        history: LoadHistory,
        build_pipeline: BuildPipeline,
    ) -> None:
        self._newest, self._context = newest, context
        self._history, self._build_pipeline = history, build_pipeline
        self.failed: dict[str, frozenset[str]] = {}

    async def open(self, files: ComposedFiles, instead: Newest) -> ComposedModel:
        """Build a composed model on the newest versions of its parts, and test it.

        `instead` maps the names of models to versions that are about to replace the served ones;
        None means that the model will not be served. The test is left to the first request if
        `instead` is empty and a part starts on demand. If no version of the composed model is
        served, its name is added to `failed`, and removed when this call succeeds. Raises
        ConfigError if a part is not served or is composed itself, and the errors of build() and
        test() of ComposedModel.
        """
        if self._newest(files.name) is None:  # until it is open
            self.failed[files.name] = frozenset(files.config.parts.values())
        parts = {part: self._part(files, part, instead) for part in files.config.parts}
        context = self._context
        model = ComposedModel(files, parts, observer=context.observer, clock=context.clock)
        try:
            await model.build(self._build_pipeline)
            if instead or not model.starts_on_demand:
                await model.tested()
        except BaseException:
            await model.close()
            raise
        self.failed.pop(files.name, None)
        return model

    def _part(self, files: ComposedFiles, part: str, instead: Newest) -> ServedModel:
        """Return the version for `part`: that in `instead`, else the newest that is served.

        Raises ConfigError if there is none or it is composed.
        """
        name = files.config.parts[part]
        served = instead[name] if name in instead else self._newest(name)
        if served is None:
            raise ConfigError(f"its part {part}, model {name}, is not served")
        if isinstance(served, ComposedModel):
            raise composed_itself(part, name)
        return served

    async def rebuilt(
        self, model: ComposedModel, instead: Newest, required: bool
    ) -> ComposedModel | None:
        """Build a composed model again, with the versions of `instead`; see open().

        If open() raises a PaddlepoolError, this raises BackendError if the composed model is
        `required`; otherwise it adds the model to `failed` and returns None.
        """
        files = model.files
        try:
            if required:  # the model keeps serving if this fails
                return await self.open(files, instead)
            with self._history.attempt(model.name, model.version):
                return await self.open(files, instead)
        except PaddlepoolError as error:
            if required:
                label = f"{model.name}@{model.version}"
                raise BackendError(f"{label}, which uses it, fails: {error.message}") from error
            self.failed[model.name] = frozenset(files.config.parts.values())
            return None

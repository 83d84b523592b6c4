"""A verified version becomes a served one, with the default group that was chosen for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from app.contracts.errors import BackendError, BackendUnavailable, ConfigError
from app.contracts.ports import Pipeline, ServedModelInfo
from app.contracts.status import Choice
from app.engine.pool.context import EngineContext
from app.engine.registry.model import ServedModel, first_choice
from app.repository.layout import ModelFiles

BuildPipeline = Callable[[ServedModelInfo], Pipeline | None]

KeptChoice = Callable[[ModelFiles], Choice | None]
"""The default group that was chosen for a version before it was loaded."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOpener:
    """Every method blocks until the groups that always run are tested and warm, and raises
    ManifestError, ConfigError or BackendError where the version is unfit."""

    context: EngineContext
    build_pipeline: BuildPipeline
    kept_choice: KeptChoice

    def open(self, files: ModelFiles, *, gently: bool) -> ServedModel:
        """With the first group that this machine can run, or the choice that was kept."""
        try:
            return self._opened(files, gently)
        except BackendUnavailable as unavailable:
            following = files.after_first_group()
            if following is None:
                raise
            log.warning(
                "%s@%d: %s is not available here: %s; trying %s",
                files.name,
                files.version,
                files.config.first_group,
                unavailable.message,
                following.config.first_group,
            )
        return self.open(following, gently=gently)

    def _opened(self, files: ModelFiles, gently: bool) -> ServedModel:
        """With the kept choice, or with the first group where that one cannot start."""
        if files.config.dynamic_batching.express_instance:
            log.warning(
                "%s@%d: express_instance in config.toml has no effect any more",
                files.name,
                files.version,
            )
        choice = None if files.config.first_group is None else self.kept_choice(files)
        try:
            return self._started(ServedModel(files, context=self.context, choice=choice), gently)
        except (ConfigError, BackendError) as error:
            if choice is None or choice.group == files.config.default_group:
                raise
            reason = f"{choice.group}, which was chosen before, cannot start: {error.message}"
        choice = first_choice(files.config, reason=reason)
        log.warning("%s@%d: %s serves: %s", files.name, files.version, choice.group, reason)
        return self._started(ServedModel(files, context=self.context, choice=choice), gently)

    def reopen(self, served: ServedModel, choice: Choice) -> ServedModel:
        """The same version by another default group, beside what is served."""
        model = ServedModel(served.files, context=self.context, choice=choice, before=served)
        return self._started(model, gently=True)

    def _started(self, model: ServedModel, gently: bool) -> ServedModel:
        try:
            model.pipeline = self.build_pipeline(model.info)
            model.start(gently=gently)
        except BaseException:
            model.close()
            raise
        return model

"""Opens a version with its default group, the stored choice, or a group that can run here."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from paddlepool.contracts import errors
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import BuildPipeline
from paddlepool.contracts.status import Choice
from paddlepool.engine.concurrency import in_thread
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.model import ServedModel, first_choice
from paddlepool.models.repository.layout import ModelFiles

log = logging.getLogger(__name__)

StoredChoice = Callable[[ModelFiles], Choice | None]
"""Returns the default group that was chosen for a version before it was loaded, or None."""


class Opener:
    """Opens versions for a registry."""

    def __init__(
        self,
        context: EngineContext,
        build_pipeline: BuildPipeline,
        stored_choice: StoredChoice,
        on_failure: Callable[[ServedModel], None],
    ) -> None:
        """`on_failure` is called with a model if an instance of its default group rejects it."""
        self._context, self._build_pipeline = context, build_pipeline
        self._stored_choice, self._on_failure = stored_choice, on_failure

    async def open(
        self, files: ModelFiles, *, low_priority: bool, default: bool = False
    ) -> ServedModel:
        """Open a version with the default group of config.toml.

        With "auto", that is the stored choice, else the first group, or else another candidate if
        this machine lacks what the first group needs. Returns when the groups that always run are
        tested and warm. A default group that starts on demand is not opened unless `default`.
        Raises ManifestError, ConfigError, BackendError or WorkerCrashed.
        """
        label = f"{files.name}@{files.version}"
        while True:
            try:
                return await self._open_chosen(files, low_priority, default)
            except errors.BackendUnavailable as unavailable:
                following = files.config.after_first_group()
                if following is None:
                    raise
                missing = f"{files.config.first_group} is not available here: {unavailable.message}"
                log.warning("%s: %s; trying %s", label, missing, following.first_group)
                files = replace(files, config=following)

    async def _open_chosen(
        self, files: ModelFiles, low_priority: bool, default: bool
    ) -> ServedModel:
        """Open a version with the stored choice of "auto" if it starts, else the default group."""
        choice = None if files.config.first_group is None else self._stored_choice(files)
        try:
            return await self.start(files, choice, low_priority=low_priority, default=default)
        except (ConfigError, errors.BackendError) as error:
            if choice is None or choice.group == files.config.default_group:
                raise
            reason = f"{choice.group}, which was chosen before, cannot start: {error.message}"
        choice = first_choice(files.config, reason=reason)
        log.warning("%s@%d: %s serves: %s", files.name, files.version, choice.group, reason)
        return await self.start(files, choice, low_priority=low_priority, default=default)

    async def start(
        self,
        files: ModelFiles,
        choice: Choice | None,
        *,
        low_priority: bool,
        default: bool = False,
        before: ServedModel | None = None,
    ) -> ServedModel:
        """Build a ServedModel and its pipeline, and start() it; close it if that fails."""
        build = partial(
            ServedModel,
            files,
            context=self._context,
            choice=choice,
            before=before,
            on_failure=self._on_failure,
        )
        model = await in_thread(f"{files.name}@{files.version} reading", build)
        try:
            model.pipeline = await self._build_pipeline(model.info)
            in_use = before is not None and before.running
            await model.start(low_priority=low_priority, default=default or in_use)
        except BaseException:
            await model.close()
            raise
        return model

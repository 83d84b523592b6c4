"""Promotes, rejects and rolls back versions; for the judge and for a person."""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from paddlepool.contracts.errors import (
    CanaryConflict,
    ModelLoadFailed,
    ModelNotFound,
    ModelNotReady,
    PaddlepoolError,
)
from paddlepool.contracts.ports import Clock
from paddlepool.contracts.status import (
    UNFINISHED,
    CanaryStatus,
    Trial,
    TrialExample,
    TrialState,
    VersionSet,
)
from paddlepool.engine.concurrency import in_thread_or_inline
from paddlepool.engine.registry.promotions import Promotions, Serving
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.canary.verdict import status_of

By = Literal["measured", "person"]

FOLLOW_SECONDS = 1.0
"""Pause between two looks at what other servers have decided."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CanaryControl:
    """Changes which version of a model serves. Belongs to the event loop.

    A change is stored before it is made, so that a server that is killed meanwhile starts with a
    version that was promoted.
    """

    registry: ModelRegistry
    promotions: Promotions
    wall_clock: Clock = time.time
    judge: str = ""
    """The other replica that judges new versions; empty if this server judges them itself."""
    examples: dict[str, Sequence[TrialExample]] = field(default_factory=dict, init=False)
    """The requests of the latest trial on which the versions differ most, by model."""
    _changing: defaultdict[str, asyncio.Lock] = field(
        default_factory=partial(defaultdict, asyncio.Lock), init=False
    )

    def status(self, model: str) -> CanaryStatus:
        """Return which version of a model serves, and its latest trial, if any. Thread-safe.

        Raises ModelNotFound, and CanaryConflict if the model's version policy is not `canary`.
        """
        self._check_known(model)
        serving = self.promotions.serving(model)
        if serving is None:
            whole = self.promotions.whole_of(model)
            hint = f"; it is judged as a part of {whole}" if whole else ""
            raise CanaryConflict(f"the version policy of {model} is not canary{hint}")
        served = self.registry.newest(model)
        # It is not the recorded version if that is not published or cannot be loaded.
        now = serving.version_set if served is None else served.version_set
        facts: dict[str, Any] = {
            "serving": now.version,
            "previous": serving.previous,
            "serving_parts": dict(now.parts),
            "previous_parts": serving.previous_parts,
        }
        trials = self.promotions.trials(model)
        canary = next((row for row in self.registry.canaries.all() if row.name == model), None)
        reason = ""
        if canary is not None and canary.problem:
            text = canary.version_set.text(model, now)
            reason = f"{text if canary.parts else f'version {canary.version}'} {canary.problem}"
            if trials and trials[0].version_set != canary.version_set:
                trials = []  # of an older version
        if not trials:
            return CanaryStatus(model=model, reason=reason, **facts)
        policy = None if served is None else served.config.version_policy
        if reason and trials[0].state == "testing":
            facts["reason"] = reason  # the trial waits
        return replace(status_of(trials[0], policy), **facts)

    def examples_of(self, model: str) -> Sequence[TrialExample]:
        """Return the requests on which the versions differ most, worst first.

        Raises as status() does.
        """
        self.status(model)
        return self.examples.get(model, ())

    def statuses(self) -> list[CanaryStatus]:
        """Return the latest trial of each served model that has one and the policy canary.

        Unlike status(), does so also while a newer version cannot be tried, and without the fields
        that are not about the trial.
        """
        models = sorted({served.name for served in self.registry.all_served()})
        judged = [name for name in models if self.promotions.serving(name)]
        trials = [self.promotions.trials(name)[:1] for name in judged]
        return [status_of(latest, None) for row in trials for latest in row]

    async def promote(
        self, model: str, *, by: By = "person", reason: str = "promoted by a person"
    ) -> None:
        """Serve the newest version instead of the current one, without losing a request.

        The newest version must have a trial, but this may have been rejected. Raises ModelNotFound;
        CanaryConflict if there is no such trial, or if `by` is "measured" and a person has already
        decided; ModelNotReady during the shutdown; ModelLoadFailed if the version cannot be loaded.
        In the last case the current version continues to serve, and the new one is rejected unless
        an OSError was the cause.
        """
        async with self._changing[model]:
            trial = self._trial(model)
            if by == "measured" and trial.state != "testing":
                raise CanaryConflict(f"{model}: a person has decided meanwhile")
            await self._serve(model, trial.version_set, trial)
            await self._decide(trial, "promoted", reason, by)

    async def reject(
        self,
        model: str,
        *,
        by: By = "person",
        reason: str = "rejected by a person",
        state: TrialState = "rejected",
    ) -> None:
        """End the trial of the newest version, and close its processes that answer requests.

        The version stays unloaded until its files change or a person promotes it; the `state`
        "passed" means that it waits for a person. Raises ModelNotFound, and CanaryConflict if there
        is no unfinished trial, or if `by` is "measured" and the trial's state is not "testing".
        """
        async with self._changing[model]:
            trial = self._trial(model)
            if trial.state not in UNFINISHED or (by == "measured" and trial.state != "testing"):
                raise CanaryConflict(f"version {trial.version} of {model} is {trial.state}")
            await self._decide(trial, state, reason, by)
            await self.registry.beside.close(model)

    async def rollback(self, model: str) -> None:
        """Serve the version that the present one has replaced, and reject the present one.

        There is then no version to return to until the next promotion. Raises ModelNotFound,
        CanaryConflict if none was replaced, ModelNotReady during the shutdown, and ModelLoadFailed
        if the old version cannot be loaded.
        """
        async with self._changing[model]:
            self._check_known(model)
            serving = self.promotions.serving(model)
            if serving is None or serving.previous is None:
                raise CanaryConflict(f"no version of {model} was replaced by a promotion")
            trials = self.promotions.trials(model)
            now = serving.version_set
            trial = next((row for row in trials if row.version_set == now), None)
            await self._serve(model, VersionSet(serving.previous, serving.previous_parts))
            if trial is not None:
                await self._decide(trial, "rejected", "rolled back by a person", "person")

    async def run(self) -> None:
        """Call follow() every FOLLOW_SECONDS until the task is cancelled; only log errors."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                await self.follow()
            except Exception:
                log.exception("the decisions of other servers cannot be followed")

    async def follow(self) -> None:
        """Do what other servers that share the file of `promotions` have decided.

        Loads the version that they serve, and closes the processes of a version that they rejected.
        A failure to load is only logged. If another replica judges, sets the `problem` of each new
        version whose trial that replica has not begun, and clears that of the others.
        """
        served = self.registry.all_served()
        if not any(model.config.version_policy.kind == "canary" for model in served):
            return
        for model in await in_thread_or_inline("promotions", self.promotions.refresh):
            await self._follow(model)
        for canary in self.registry.canaries.all() if self.judge else ():
            trials = self.promotions.trials(canary.name)
            begun = any(trial.version_set == canary.version_set for trial in trials)
            problem = "" if begun else f"waits for the verdict of the replica {self.judge!r}"
            if problem and canary.problem != problem:
                log.info("%s@%d: canary %s", canary.name, canary.version, problem)
            canary.problem = problem

    async def _follow(self, model: str) -> None:
        async with self._changing[model]:
            serving, trials = self.promotions.serving(model), self.promotions.trials(model)
            beside = self.registry.beside.get(model)
            rejected = trials[0].version_set if trials and trials[0].state == "rejected" else None
            if beside is not None and beside.version_set == rejected:  # not the one before it
                await self.registry.beside.close(model)
            served = [row.version_set for row in self.registry.all_served() if row.name == model]
            if serving is not None and served and serving.version_set not in served:
                text = serving.version_set.text(model, served[0])
                log.info("%s serves at another server", text)
                with contextlib.suppress(PaddlepoolError, OSError):  # logged, and index() has it
                    await self.registry.load(model, changed=())

    async def _serve(self, model: str, versions: VersionSet, trial: Trial | None = None) -> None:
        """Record and load a version. If that fails, the one before continues to serve.

        With `trial`, the version is a new one: rollback() can return to the one before it, and a
        failure to load rejects it, except an OSError. Raises ModelLoadFailed, and ModelNotReady if
        the server is shutting down.
        """
        before, current = self.promotions.serving(model), self.registry.newest(model)
        serving = Serving(
            model=model,
            version=versions.version,
            parts=dict(versions.parts),
            at=self.wall_clock(),
        )
        if before is not None and trial is not None:
            now = before.version_set if current is None else current.version_set
            update = {"previous": now.version, "previous_parts": dict(now.parts)}
            update["sha256"] = "" if now.parts else trial.sha256
            serving = serving.model_copy(update=update)
        await self._store(serving)
        try:
            await self.registry.load(model, changed=())
            served = [row for row in self.registry.all_served() if row.name == model]
            if versions not in [row.version_set for row in served]:
                raise ModelLoadFailed(
                    f"version {versions.version} of {model}, or of a part, is not in the repository"
                )
        except ModelNotReady:
            await self._restore(before)
            raise
        except (PaddlepoolError, OSError) as error:
            await self._restore(before)
            with contextlib.suppress(PaddlepoolError, OSError):  # logged, and index() has it
                await self.registry.load(model, changed=())
            message = error.message if isinstance(error, PaddlepoolError) else "see the log"
            if trial is not None and isinstance(error, PaddlepoolError):
                reason = f"it cannot be loaded: {message}"
                await self._decide(trial, "rejected", reason, "measured")
            raise ModelLoadFailed(message) from error

    async def _restore(self, serving: Serving | None) -> None:
        if serving is not None:
            await self._store(serving.model_copy(update={"at": self.wall_clock()}))

    async def _store(self, serving: Serving) -> None:
        store = partial(self.promotions.serve, serving.model, serving)
        await in_thread_or_inline("promotions", store)

    async def _decide(self, trial: Trial, state: TrialState, reason: str, by: By) -> None:
        stored = self.promotions.trial(trial.model, trial.version, trial.sha256) or trial
        decided = replace(stored, state=state, reason=reason, by=by, at=self.wall_clock())
        await in_thread_or_inline("promotions", partial(self.promotions.put, decided))
        level = logging.WARNING if state == "rejected" else logging.INFO
        text = trial.version_set.text(trial.model, trial.current_set)
        log.log(level, "%s: canary %s: %s", text, state, reason)

    def _trial(self, model: str) -> Trial:
        """Return the newest version's trial. Raises ModelNotFound, or CanaryConflict if none."""
        self._check_known(model)
        newest = next((row for row in self.registry.canaries.all() if row.name == model), None)
        trials = self.promotions.trials(model)
        if newest is None or not trials or trials[0].version_set != newest.version_set:
            raise CanaryConflict(f"no version of {model} is on trial")
        return trials[0]

    def _check_known(self, model: str) -> None:
        if model not in self.registry.wanted():
            raise ModelNotFound("no model of this name is served")

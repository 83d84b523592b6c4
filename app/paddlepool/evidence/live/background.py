"""The one thread that compares instance groups while no request is being answered.

It replays answered requests on other groups and on new versions, chooses default groups, and
measures whether a group's outputs or times differ from those of its base.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.ports import AgreementOf, Clock
from paddlepool.contracts.reasons import ShadowOutcome
from paddlepool.contracts.status import CANNOT_START, Effect
from paddlepool.contracts.tensors import Tensors, largest_difference
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.composer import AnyModel
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.live.chooser import Chooser
from paddlepool.evidence.live.shadow_predictor import (
    Closed,
    FinalFailures,
    IdleGate,
    ShadowPredictor,
    ShadowPredictors,
)
from paddlepool.evidence.verdict.proof import MIN_PAIRS, Runner, Runs, interleave, judge
from paddlepool.models.repository.config import ModelConfig
from paddlepool.observability.metrics import Metrics

log = logging.getLogger(__name__)

MAX_RESIDENT_BYTES = 2 << 30
"""A shadow predictor that uses more memory is closed; the next replay opens a new one."""


@dataclass(slots=True, eq=False)
class Shadow:
    """Samples answered jobs and replays them on other groups.

    offer() is called from the event loop, replay_one() from the thread that owns the predictors. At
    most one job per model waits. At most `max_predictors` predictors are open; before another is
    opened, the least recently used one is closed.
    """

    registry: ModelRegistry
    shadow_predictors: ShadowPredictors
    fraction: float
    groups: Sequence[str]
    max_predictors: int
    observer: Metrics
    agreement_of: AgreementOf
    draw: Callable[[], float] = random.random
    _waiting: dict[str, tuple[ServedModel, Tensors, Tensors]] = field(
        default_factory=dict, init=False
    )
    _open: dict[tuple[ServedModel, str], ShadowPredictor] = field(default_factory=dict, init=False)
    _final_failures: FinalFailures = field(default_factory=FinalFailures, init=False)
    _refused: set[tuple[ServedModel, str]] = field(default_factory=set, init=False)

    def offer(self, served: ServedModel, group: str, inputs: Tensors, outputs: Tensors) -> bool:
        """Store a job of a request for a replay; return whether this was done.

        It is done with the probability `fraction` if the default group answered the request and no
        other job of the model waits. A job that was drawn but not stored is counted as dropped.
        """
        if group != served.config.default_group or self.draw() >= self.fraction:
            return False
        if served.name in self._waiting:
            self.observer.shadowed(model=served.name, outcome=ShadowOutcome.DROPPED)
            return False
        self._waiting[served.name] = (served, inputs, outputs)
        return True

    def waiting(self) -> bool:
        return bool(self._waiting)

    def replay_one(self) -> bool:
        """Replay on other groups the job that has waited longest, and count the outcome.

        Also closes predictors of versions that are no longer served. Does nothing and returns False
        if no job waits. Raises Closed, and OSError if the system cannot start a process.
        """
        waiting = list(self._waiting.values())  # atomic: offer() may add to it meanwhile
        if not waiting:
            return False
        served, inputs, expected = waiting[0]
        models, outcome = self.registry.served(), ShadowOutcome.FAILED
        for gone in [key for key in self._open if key[0] not in models]:
            self._open.pop(gone).close()
        self._refused = {key for key in self._refused if key[0] in models}
        try:
            groups = self._groups_of(served) if served in models else []
            done = [self._replay(served, group, inputs, expected) for group in groups]
            if all(done):  # a failure does not stop the other groups' replays
                outcome = ShadowOutcome.REPLAYED if groups else ShadowOutcome.DROPPED
        finally:
            del self._waiting[served.name]
            self.observer.shadowed(model=served.name, outcome=outcome)
        return True

    def _groups_of(self, served: ServedModel) -> list[str]:
        """Return the groups to replay on: those in `self.groups`, or all ready ones if it is empty.

        The default group and groups that cannot be opened are left out.
        """
        return [
            status.name
            for status in served.groups()
            if status.name != served.config.default_group
            and (status.name in self.groups if self.groups else status.ready)
            and (served, status.name) not in self._refused
        ]

    def _replay(self, served: ServedModel, group: str, inputs: Tensors, expected: Tensors) -> bool:
        key, keep = (served, group), False
        try:
            shadow = self._open.pop(key, None)
            if shadow is None:
                if len(self._open) == self.max_predictors:
                    self._open.pop(next(iter(self._open))).close()
                shadow = self.shadow_predictors.open(served, group)
        except PaddlepoolError as error:
            if self._final_failures.is_final(error, served, group):
                self._refused.add(key)
            log.warning("%s %s: cannot be shadowed: %s", served.name, group, error.message)
            return False
        try:
            timed = shadow.run(inputs)
            keep = shadow.predictor.resident_bytes() <= MAX_RESIDENT_BYTES
        except PaddlepoolError as error:
            log.warning("%s %s: a replay failed: %s", served.name, group, error.message)
            return False
        finally:
            if keep:
                self._open[key] = shadow
            else:
                shadow.close()
        if timed.seconds is not None:
            # Without a batch axis, clients choose the first size. It must not become the label
            # `rows`, because the number of its values would have no limit.
            rows = len(next(iter(inputs.values()))) if served.batched else 1
            self.observer.batch_done(
                model=served.name,
                version=served.version,
                group=group,
                rows=rows,
                seconds=timed.seconds,
            )
        agreement = self.agreement_of(served.info)
        self.observer.drifted(
            model=served.name,
            group=group,
            drift=largest_difference(timed.outputs, expected),
            agreement=None if agreement is None else agreement(timed.outputs, expected),
        )
        return True

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


Which = Literal["off", "started", "all"]

MAX_PAIRS = 24
MAX_ROUNDS = 72
"""More than MAX_PAIRS, because pairs with an interrupted run do not count."""

RETRY_SECONDS = 600.0
"""Pause before a group without a final result is measured again."""

NOTHING_TO_COMPARE = Effect(None, "it is the reference of the other groups, and names no base")


@dataclass(slots=True, eq=False)
class Prover:
    """Measures whether groups have an effect (see Effect), one group at a time.

    `which` selects the groups: those that are started, all of config.toml, or none ("off").
    """

    registry: ModelRegistry
    shadow_predictors: ShadowPredictors
    which: Which
    clock: Clock = time.monotonic
    _final_failures: FinalFailures = field(default_factory=FinalFailures, init=False)
    _done: dict[tuple[ServedModel, str], float] = field(default_factory=dict, init=False)

    def prove_one(self) -> bool:
        """Measure one group against its base and record its Effect.

        A group without a final result is measured again after RETRY_SECONDS. Returns False if there
        is no group to measure now. Raises Closed, and OSError if the system cannot start a process.
        """
        if self.which == "off":
            return False
        now, models = self.clock(), self.registry.served()
        self._done = {key: when for key, when in self._done.items() if key[0] in models}
        for served in models:
            for status in served.groups():
                # The effect may be known from the choice of the default group.
                unproven = status.effect.effective is None
                wanted = unproven and (status.started or self.which == "all")
                if wanted and self._done.get((served, status.name), now) <= now:
                    self._prove(served, status.name)
                    return True
        return False

    def _prove(self, served: ServedModel, group: str) -> None:
        effect, again = self._effect(served, group)
        served.record_effect(group, effect)
        self._done[served, group] = self.clock() + RETRY_SECONDS if again else float("inf")
        known, why = effect.effective, effect.reason
        log.info("%s@%d %s: effective %s: %s", served.name, served.version, group, known, why)

    def _effect(self, served: ServedModel, group: str) -> tuple[Effect, bool]:
        """Measure a group; return its effect, and whether to measure it again later."""
        base = served.config.base_of(group)
        if base is None:
            return NOTHING_TO_COMPARE, False
        if served.too_small:
            return Effect(None, served.too_small), False

        def enough(runs: Mapping[str, Runs]) -> bool:
            own, pairs = runs[group], len(runs[group].seconds)
            return pairs >= MIN_PAIRS and (
                pairs >= MAX_PAIRS or judge(own, runs[base], base=base).effective is not None
            )

        runners: dict[str, Runner] = {}
        with contextlib.ExitStack() as opened:
            for name in (group, base):
                try:
                    shadow = self.shadow_predictors.open(served, name)
                except PaddlepoolError as error:
                    who = "" if name == group else f"its base {name} "
                    again = not self._final_failures.is_final(error, served, group)
                    return Effect(None, f"{who}{CANNOT_START}{error.message}"), again
                opened.callback(shadow.close)
                runners[name] = shadow.run
            inputs = [served.selftest.inputs]
            try:
                runs = interleave(runners, inputs, rounds=MAX_ROUNDS, enough=enough)
            except PaddlepoolError as error:
                return Effect(None, f"its runs failed: {error.message}"), True
        verdict = judge(runs[group], runs[base], base=base)
        return Effect(verdict.effective, verdict.reason), verdict.effective is None


POLL_SECONDS = 1.0

START_SECONDS = 10.0
"""No group is measured in the server's first seconds, which belong to its first requests."""

AFTER_FAILURE_SECONDS = 60.0
"""Pause after a failure, such as a system that cannot start another process."""

CLOSING_SECONDS = 1.0


class VersionJudge(Protocol):
    """Compares a new version with the one that serves.

    offer() is called from the event loop, the other methods from the background thread.
    """

    loop: asyncio.AbstractEventLoop

    def offer(self, served: AnyModel, sample: Any) -> bool: ...

    def waiting(self) -> bool: ...

    def judge_one(self) -> bool: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class Background:
    """The background thread, and the TrafficListener that makes it pause during requests.

    began(), ended(), completed() and answered() are called from the event loop.
    """

    idle_gate: IdleGate
    shadow: Shadow
    prover: Prover
    chooser: Chooser
    judge: VersionJudge
    clock: Clock = time.monotonic
    start_seconds: float = START_SECONDS

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._live, name="background", daemon=True)

    def start(self) -> None:
        """Start the thread; called from the event loop."""
        self.chooser.loop = self.judge.loop = asyncio.get_running_loop()
        self._thread.start()

    def began(self) -> None:
        self.idle_gate.began()

    def ended(self) -> None:
        self.idle_gate.ended()

    def completed(self, served: ServedModel, group: str, inputs: Tensors, outputs: Tensors) -> None:
        shadowed = self.shadow.offer(served, group, inputs, outputs)
        if self.judge.offer(served, inputs) or shadowed:
            self.idle_gate.wake()

    def answered(self, served: ComposedModel, payload: Any) -> None:
        if self.judge.offer(served, payload):
            self.idle_gate.wake()

    def _live(self) -> None:
        prove_from = self.clock() + self.start_seconds
        with contextlib.suppress(Closed):
            while True:
                self.idle_gate.rest(POLL_SECONDS, unless=self._waiting)
                self.idle_gate.wait()
                try:
                    while self.shadow.replay_one() or (
                        self.clock() >= prove_from
                        and (
                            self.judge.judge_one()
                            or self.chooser.choose_one()
                            or self.prover.prove_one()
                        )
                    ):
                        self.idle_gate.wait()
                except Closed:
                    raise
                except Exception:
                    log.exception("comparing instance groups failed")
                    self.idle_gate.rest(AFTER_FAILURE_SECONDS, unless=lambda: False)
        self.shadow.close()
        self.judge.close()

    def _waiting(self) -> bool:
        return self.shadow.waiting() or self.judge.waiting()

    def close(self) -> None:
        """End the thread, and wait for it at most CLOSING_SECONDS. A longer run is abandoned."""
        self.idle_gate.close()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)


def warn_of_unknown_groups(names: Collection[str], configs: Iterable[ModelConfig]) -> None:
    """Log a warning for each of `names` that is no group on which requests can be replayed.

    Such a name may be a typo, or its model may not be published yet. Requests can be replayed on a
    default group only if the server chooses it, because another may then take its place.
    """
    known = {
        group.name
        for config in configs
        for group in config.instance_group
        if group.name != config.default_group or config.first_group is not None
    }
    for name in names:
        if name not in known:
            log.warning(
                "PADDLEPOOL_SHADOW_GROUPS: no model has an instance group %r yet that is not its "
                "default group",
                name,
            )

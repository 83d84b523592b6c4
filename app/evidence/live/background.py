"""The one thread that compares instance groups while no request is being answered."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.contracts.errors import PaddlepoolError
from app.contracts.ports import AgreementOf, Clock, PredictorFactory
from app.contracts.status import CANNOT_START, Choice, Effect
from app.contracts.tensors import Tensors
from app.engine.process.suspension import Suspension
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.evidence.live.chooser import Chooser, Choosing, Precision
from app.evidence.live.shadow import Shadow
from app.evidence.live.shadow_predictor import Closed, FinalFailures, IdleGate, ShadowPredictors
from app.evidence.verdict.proof import MIN_PAIRS, Runner, Runs, Verdict, interleave, judge
from app.models.repository.layout import ModelFiles
from app.observability.metrics import Metrics

POLL_SECONDS = 1.0

START_SECONDS = 10.0
"""No group is measured in the server's first seconds, which belong to its first requests."""

AFTER_FAILURE_SECONDS = 60.0
"""Pause after a failure, such as a system that cannot start another process."""

CLOSING_SECONDS = 1.0

Which = Literal["off", "started", "all"]

MAX_PAIRS = 24
MAX_ROUNDS = 72
"""More than MAX_PAIRS, because pairs with an interrupted run do not count."""

RETRY_SECONDS = 600.0
"""Pause before a group is measured again.

Its runs failed or were noisy, or its process crashed for the first time.
"""

NOTHING_TO_COMPARE = Effect(None, "it is the reference of the other groups, and names no base")

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Prover:
    """Proves one group at a time; `which` selects the started groups, or all of config.toml."""

    registry: ModelRegistry
    shadow_predictors: ShadowPredictors
    which: Which
    clock: Clock = time.monotonic
    _final_failures: FinalFailures = field(default_factory=FinalFailures, init=False)
    _done: dict[tuple[ServedModel, str], float] = field(default_factory=dict, init=False)

    def prove_one(self) -> bool:
        """Judge one group and record the effect; False if none is due. Raises Closed."""
        if self.which == "off":
            return False
        now, models = self.clock(), self.registry.served()
        self._done = {key: when for key, when in self._done.items() if key[0] in models}
        for served in models:
            for status in served.groups():
                # The effect may be known from the choice of the default group.
                wanted = status.effect.effective is None and (status.started or self.which == "all")
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
        """Return the effect, and whether to measure it again later."""
        base = served.config.base_of(group)
        if base is None:
            return NOTHING_TO_COMPARE, False

        def judged(runs: Mapping[str, Runs]) -> Verdict:
            return judge(runs[group], runs[base], base=base)

        def enough(runs: Mapping[str, Runs]) -> bool:
            pairs = len(runs[group].seconds)
            if pairs < MIN_PAIRS:
                return False
            return pairs >= MAX_PAIRS or judged(runs).effective is not None

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
                verdict = judged(interleave(runners, inputs, rounds=MAX_ROUNDS, enough=enough))
            except PaddlepoolError as error:
                return Effect(None, f"its runs failed: {error.message}"), True
        return Effect(verdict.effective, verdict.reason), verdict.effective is None


@dataclass(eq=False)
class Background:
    """The background thread, and the TrafficListener that makes it pause during requests.

    began(), ended() and answered() are called from the event loop.
    """

    idle_gate: IdleGate
    shadow: Shadow
    prover: Prover
    chooser: Chooser
    clock: Clock = time.monotonic
    start_seconds: float = START_SECONDS

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._live, name="background", daemon=True)

    def start(self) -> None:
        """Start the thread; called from the event loop."""
        self.chooser.loop = asyncio.get_running_loop()
        self._thread.start()

    def began(self) -> None:
        self.idle_gate.began()

    def ended(self) -> None:
        self.idle_gate.ended()

    def answered(
        self, served: ServedModel, group: str, jobs: Sequence[Tensors], outputs: Sequence[Tensors]
    ) -> None:
        if self.shadow.offer(served, group, jobs, outputs):
            self.idle_gate.wake()

    def _live(self) -> None:
        prove_from = self.clock() + self.start_seconds
        with contextlib.suppress(Closed):
            while True:
                self.idle_gate.rest(POLL_SECONDS, unless=self.shadow.waiting)
                self.idle_gate.wait()
                try:
                    while self.shadow.replay_one() or (
                        self.clock() >= prove_from
                        and (self.chooser.choose_one() or self.prover.prove_one())
                    ):
                        self.idle_gate.wait()
                except Closed:
                    raise
                except Exception:
                    log.exception("comparing groups beside the service failed")
                    self.idle_gate.rest(AFTER_FAILURE_SECONDS, unless=lambda: False)
        self.shadow.close()

    def close(self) -> None:
        """End the thread without waiting for a run in progress; that ends with the process."""
        self.idle_gate.close()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)


def open_background(
    registry: ModelRegistry,
    *,
    backend: Callable[[Suspension], PredictorFactory],
    observer: Metrics,
    agreement_of: AgreementOf,
    prove: Which,
    fraction: float,
    groups: Sequence[str],
    max_predictors: int,
    precision: Precision,
    keep: Callable[[ModelFiles, Choice], None],
) -> Background | None:
    """Return one thread for Shadow, Prover and Chooser, not yet started; None if all are off.

    With `prove` off, default groups are not chosen either.
    """
    if prove == "off" and not fraction:
        return None
    suspension = Suspension()
    idle_gate = IdleGate(suspension)
    predictors = ShadowPredictors(open_predictor=backend(suspension), idle_gate=idle_gate)
    shadow = Shadow(
        registry,
        predictors,
        fraction=fraction,
        groups=groups,
        max_predictors=max_predictors,
        observer=observer,
        agreement_of=agreement_of,
    )
    which: Choosing = "off" if prove == "off" else precision
    return Background(
        idle_gate,
        shadow=shadow,
        prover=Prover(registry, predictors, which=prove),
        chooser=Chooser(registry, predictors, precision=which, keep=keep),
    )

"""Proves whether a group has an effect: its runs alternate with runs of its base."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from app.contracts.errors import PaddlepoolError
from app.contracts.ports import Clock
from app.contracts.status import CANNOT_START, Effect
from app.contracts.tensors import Tensors
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.evidence.live.shadow_predictor import FinalFailures, ShadowPredictors
from app.evidence.verdict.proof import MIN_PAIRS, Runner, Runs, Verdict, interleave, judge

Which = Literal["off", "started", "all"]

MAX_PAIRS = 24
MAX_ROUNDS = 72
"""More than MAX_PAIRS, because pairs with an interrupted run do not count."""

OWN, BASE = "own", "base"

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
        found = next(self._unproven(), None)
        if found is None:
            return False
        served, group = found
        effect, again = self._effect(served, group)
        served.record_effect(group, effect)
        self._done[served, group] = self.clock() + RETRY_SECONDS if again else float("inf")
        log.info(
            "%s@%d %s: effective %s: %s",
            served.name,
            served.version,
            group,
            effect.effective,
            effect.reason,
        )
        return True

    def _unproven(self) -> Iterator[tuple[ServedModel, str]]:
        if self.which == "off":
            return
        now, models = self.clock(), self.registry.served()
        self._done = {key: when for key, when in self._done.items() if key[0] in models}
        for served in models:
            for status in served.groups():
                wanted = status.started or self.which == "all"
                if status.effect.effective is not None:
                    continue  # known, perhaps from the choice of the default group
                if wanted and self._done.get((served, status.name), now) <= now:
                    yield served, status.name

    def _effect(self, served: ServedModel, group: str) -> tuple[Effect, bool]:
        """Return the effect, and whether to measure it again later."""
        base = served.config.base_of(group)
        if base is None:
            return NOTHING_TO_COMPARE, False
        runners: dict[str, Runner] = {}
        with ExitStack() as opened:
            for role, name in ((OWN, group), (BASE, base)):
                try:
                    shadow = self.shadow_predictors.open(served, name)
                except PaddlepoolError as error:
                    who = "" if role == OWN else f"its base {name} "
                    again = not self._final_failures.is_final(error, served, group)
                    return Effect(None, f"{who}{CANNOT_START}{error.message}"), again
                opened.callback(shadow.close)
                runners[role] = shadow.run
            try:
                verdict = _compare(served.selftest.inputs, runners, base)
            except PaddlepoolError as error:
                return Effect(None, f"its runs failed: {error.message}"), True
        return Effect(verdict.effective, verdict.reason), verdict.effective is None


def _compare(inputs: Tensors, runners: Mapping[str, Runner], base: str) -> Verdict:
    def judged(runs: Mapping[str, Runs]) -> Verdict:
        return judge(runs[OWN], runs[BASE], base=base)

    def known(runs: Mapping[str, Runs]) -> bool:
        pairs = len(runs[OWN].seconds)
        if pairs < MIN_PAIRS:
            return False
        return pairs >= MAX_PAIRS or judged(runs).effective is not None

    return judged(interleave(runners, [inputs], rounds=MAX_ROUNDS, enough=known))

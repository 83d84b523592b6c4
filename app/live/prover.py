"""Whether each started group has an effect: runs interleaved with its base until that is known."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from app.contracts.errors import PaddlepoolError
from app.contracts.ports import Clock
from app.contracts.status import CANNOT_START, Effect
from app.contracts.tensors import Tensors
from app.engine.registry.model import ServedModel
from app.evidence.proof import MIN_PAIRS, Evidence, Verdict, bitwise_equal, judge
from app.live.ports import Served
from app.live.shadow_predictor import Refusals, ShadowPredictor, ShadowPredictors

Which = Literal["off", "started", "all"]

MAX_PAIRS = 24
MAX_ATTEMPTS = 72
"""Of pairs: those that requests interrupt are not counted."""

RETRY_SECONDS = 600.0
"""A group whose runs failed or were too noisy to tell, or whose process died once, is measured
again after this pause."""

NOTHING_TO_COMPARE = Effect(None, "the others are compared with it, and it names no base")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Runs:
    seconds: list[float] = field(default_factory=list)
    base_seconds: list[float] = field(default_factory=list)
    outputs: Tensors | None = None
    base_outputs: Tensors | None = None
    repeatable: bool = True


class Prover:
    """Proves one group at a time with two predictors of its own, closed afterwards.

    `which` are the groups to prove: those that are started, or all of config.toml.
    """

    def __init__(
        self,
        registry: Served,
        shadow_predictors: ShadowPredictors,
        *,
        which: Which,
        clock: Clock = time.monotonic,
    ) -> None:
        self._registry = registry
        self._shadow_predictors = shadow_predictors
        self._which = which
        self._clock = clock
        self._refusals = Refusals()
        self._done: dict[tuple[ServedModel, str], float] = {}

    def prove_one(self) -> bool:
        """Judge one group and record it; False when there is none. Raises Closed."""
        found = next(self._unproven(), None)
        if found is None:
            return False
        served, group = found
        effect, again = self._effect(served, group)
        served.record_effect(group, effect)
        self._done[served, group] = self._clock() + RETRY_SECONDS if again else float("inf")
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
        if self._which == "off":
            return
        now, models = self._clock(), self._registry.served()
        self._done = {key: when for key, when in self._done.items() if key[0] in models}
        for served in models:
            for status in served.groups():
                wanted = status.started or self._which == "all"
                if status.effect.effective is not None:
                    continue  # known, if only from the choice of the default group
                if wanted and self._done.get((served, status.name), now) <= now:
                    yield served, status.name

    def _effect(self, served: ServedModel, group: str) -> tuple[Effect, bool]:
        """The effect, and whether to measure again later."""
        base = served.config.base_of(group)
        if base is None:
            return NOTHING_TO_COMPARE, False
        with ExitStack() as opened:
            shadow_predictors: dict[str, ShadowPredictor] = {}
            for name in (group, base):
                try:
                    shadow_predictors[name] = opened.enter_context(
                        contextlib.closing(self._shadow_predictors.open(served, name))
                    )
                except PaddlepoolError as error:
                    who = "" if name == group else f"its base {name} "
                    again = not self._refusals.final(error, served, group)
                    return Effect(None, f"{who}{CANNOT_START}{error.message}"), again
            try:
                verdict = self._compare(
                    served.selftest.inputs, shadow_predictors[group], shadow_predictors[base], base
                )
            except PaddlepoolError as error:
                return Effect(None, f"its runs failed: {error.message}"), True
        return Effect(verdict.effective, verdict.reason), verdict.effective is None

    def _compare(
        self, inputs: Tensors, shadow: ShadowPredictor, base_shadow: ShadowPredictor, base: str
    ) -> Verdict:
        runs = _Runs()
        verdict = _judge(runs, base)
        for _ in range(MAX_ATTEMPTS):
            _run_pair(inputs, shadow, base_shadow, runs)
            verdict = _judge(runs, base)
            pairs = len(runs.seconds)
            if pairs >= MIN_PAIRS and (verdict.effective is not None or pairs >= MAX_PAIRS):
                break
        return verdict


def _run_pair(
    inputs: Tensors, shadow: ShadowPredictor, base_shadow: ShadowPredictor, runs: _Runs
) -> None:
    own, base = shadow.run(inputs), base_shadow.run(inputs)
    for found, first in ((own, runs.outputs), (base, runs.base_outputs)):
        if first is not None and not bitwise_equal(found.outputs, first):
            runs.repeatable = False
    runs.outputs, runs.base_outputs = own.outputs, base.outputs
    if own.seconds is not None and base.seconds is not None:
        runs.seconds.append(own.seconds)
        runs.base_seconds.append(base.seconds)


def _judge(runs: _Runs, base: str) -> Verdict:
    own, theirs = runs.outputs, runs.base_outputs
    return judge(
        Evidence(
            base=base,
            seconds=runs.seconds,
            base_seconds=runs.base_seconds,
            bitwise_equal=own is not None and theirs is not None and bitwise_equal(own, theirs),
            repeatable=runs.repeatable,
        )
    )

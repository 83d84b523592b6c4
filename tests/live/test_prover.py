"""Groups are proven against their base, or say why not."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from app.contracts.errors import BackendError
from app.contracts.ports import PredictorSpec, Suspended
from app.contracts.status import UNKNOWN_EFFECT, Effect
from app.contracts.tensors import Tensors
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.live.idle_gate import IdleGate
from app.live.prover import NOTHING_TO_COMPARE, RETRY_SECONDS, Prover, Which
from app.live.shadow_predictor import ShadowPredictors
from tests.engine.fakes import PATIENCE, FakeFactory, FakePredictor, ManualClock, doubled, row
from tests.live.fakes import dying, nudged


def effect(served: ServedModel, group: str = "spare") -> Effect:
    return next(each.effect for each in served.groups() if each.name == group)


def prove_all(
    registry: ModelRegistry, shadow_predictors: ShadowPredictors, which: Which = "all"
) -> int:
    prover = Prover(registry, shadow_predictors, which=which)
    count = 0
    while prover.prove_one():
        count += 1
    return count


def test_other_outputs_prove_a_group(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
) -> None:
    """Bit by bit, against a base that repeats itself."""
    runs = 0

    def by_turns(inputs: Tensors) -> Tensors:
        # own warm-up, own, base warm-up, base; then base, own, own, base, …
        nonlocal runs
        runs += 1
        own = runs <= 2 or (runs > 4 and runs % 4 in (2, 3))
        return nudged(inputs) if own else doubled(inputs)

    beside.behaviour = by_turns
    assert prove_all(registry, shadow_predictors) == 2
    found = effect(served)
    assert found.effective is True
    assert "other outputs than main" in found.reason
    assert all(predictor.closed.is_set() for predictor in beside.opened)


def test_a_group_that_changes_nothing_is_ineffective(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
) -> None:
    """The same bits in the same time: whatever its switches say."""
    beside.seconds = 1.0
    prove_all(registry, shadow_predictors)
    found = effect(served)
    assert found.effective is False, found.reason
    assert "changes nothing" in found.reason


def test_the_default_group_without_a_base_has_nothing_to_differ_from(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
) -> None:
    """It is the base of the others; nothing is opened for it."""
    assert prove_all(registry, shadow_predictors, which="started") == 1
    assert effect(served, "main") == NOTHING_TO_COMPARE
    assert effect(served) == UNKNOWN_EFFECT
    assert not beside.specs


def test_a_refused_group_says_why(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
) -> None:
    """Such as bfloat16 on a processor without it."""
    beside.refuse = BackendError("this processor has no fast bfloat16")
    prove_all(registry, shadow_predictors)
    assert effect(served) == Effect(None, "cannot start: this processor has no fast bfloat16")


def test_a_group_whose_base_is_refused_is_not_judged(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
) -> None:
    """Null with the reason, not false: nothing is known about the group."""

    class OnlyTheFirst(FakeFactory):
        def __call__(
            self, spec: PredictorSpec, *, suspension: Suspended | None = None
        ) -> FakePredictor:
            if self.opened:
                self.refuse = BackendError("no room")
            return super().__call__(spec, suspension=suspension)

    only = OnlyTheFirst()
    prove_all(registry, replace(shadow_predictors, open_predictor=only))
    assert effect(served) == Effect(None, "its base main cannot start: no room")
    assert only.opened[0].closed.is_set()


@pytest.mark.parametrize(
    ("deaths", "reason"),
    [(1, "changes nothing"), (2, "cannot start: killed")],
    ids=["once", "twice"],
)
def test_a_process_that_dies_once_is_opened_again_later(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
    deaths: int,
    reason: str,
) -> None:
    """The system may have ended it for want of memory; one that dies again is refused for good."""
    beside.selftest, beside.seconds = dying(deaths), 1.0
    clock = ManualClock()
    prover = Prover(registry, shadow_predictors, which="all", clock=clock)
    while prover.prove_one():
        pass
    assert effect(served) == Effect(None, "cannot start: killed")
    clock.advance(RETRY_SECONDS + 1)
    assert prover.prove_one()
    assert reason in effect(served).reason
    clock.advance(RETRY_SECONDS + 1)
    assert not prover.prove_one()


def test_a_group_is_proven_once_it_is_started(
    registry: ModelRegistry, shadow_predictors: ShadowPredictors, served: ServedModel
) -> None:
    """Nothing is opened for a group that nobody uses, unless all are to be proven."""
    prover = Prover(registry, shadow_predictors, which="started")
    assert prover.prove_one()  # main
    assert not prover.prove_one()
    served.submit(row(1), deadline=time.monotonic() + PATIENCE, group="spare").result(PATIENCE)
    assert prover.prove_one()
    assert effect(served) != UNKNOWN_EFFECT
    assert not prover.prove_one()


def test_runs_that_fail_are_tried_again_later(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
) -> None:
    """Not at once and not never."""

    def refuse(inputs: Tensors) -> Tensors:
        raise BackendError("out of memory")

    beside.behaviour = refuse
    clock = ManualClock()
    prover = Prover(registry, shadow_predictors, which="all", clock=clock)
    while prover.prove_one():
        pass
    assert effect(served) == Effect(None, "its runs failed: out of memory")
    beside.behaviour = doubled
    clock.advance(RETRY_SECONDS + 1)
    assert prover.prove_one()
    assert "runs failed" not in effect(served).reason


@pytest.mark.slow
def test_interrupted_pairs_do_not_count(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
    idle_gate: IdleGate,
) -> None:
    """On a machine that is never idle for the length of a run, nothing is claimed."""

    def interrupted(inputs: Tensors) -> Tensors:
        idle_gate.began()
        idle_gate.ended()
        return doubled(inputs)

    beside.behaviour = interrupted
    prove_all(registry, shadow_predictors)
    assert effect(served) == Effect(None, "it has not run yet")


def test_off_proves_nothing(registry: ModelRegistry, shadow_predictors: ShadowPredictors) -> None:
    """And asks nobody for what is served."""
    assert prove_all(registry, shadow_predictors, which="off") == 0

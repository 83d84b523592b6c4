"""Predictors beside the service: tested, warmed by shape, and timed only when undisturbed."""

from __future__ import annotations

import pytest

from app.contracts.errors import BackendError, WorkerCrashed
from app.engine.registry.model import ServedModel
from app.live.idle_gate import Closed, IdleGate
from app.live.shadow_predictor import ShadowPredictors
from app.process.suspension import Suspension
from tests.engine.fakes import FakeFactory, doubled, row
from tests.live.fakes import nudged


def test_a_spare_is_proven_before_it_is_used(
    shadow_predictors: ShadowPredictors, beside: FakeFactory, served: ServedModel
) -> None:
    """A configuration that computes something else is refused, and its process ended."""
    beside.selftest = nudged
    with pytest.raises(BackendError, match="self-test"):
        shadow_predictors.open(served, "spare")
    assert beside.opened[0].closed.is_set()


def test_a_shape_is_timed_from_its_second_run_on(
    shadow_predictors: ShadowPredictors, beside: FakeFactory, served: ServedModel
) -> None:
    """The first run of a shape prepares kernels and is several times slower."""
    seen: list[tuple[int, ...]] = []

    def counting(inputs):  # type: ignore[no-untyped-def]
        seen.append(inputs["x"].shape)
        return doubled(inputs)

    beside.behaviour = counting
    shadow = shadow_predictors.open(served, "spare")
    for job in (row(1), row(2), row(1, 2)):
        timed = shadow.run(job)
        assert timed.seconds is not None
        assert timed.outputs["y"].tolist() == doubled(job)["y"].tolist()
    assert seen == [(1, 1), (1, 1), (1, 1), (1, 2), (1, 2)]


def test_a_run_that_a_request_interrupts_has_outputs_and_no_time(
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
    idle_gate: IdleGate,
) -> None:
    """Also when the request has left again before the run ended."""
    shadow = shadow_predictors.open(served, "spare")
    shadow.run(row(1))

    def interrupted(inputs):  # type: ignore[no-untyped-def]
        idle_gate.began()
        idle_gate.ended()
        return doubled(inputs)

    beside.behaviour = interrupted
    timed = shadow.run(row(1))
    assert timed.seconds is None
    assert timed.outputs["y"].tolist() == [[2]]


def test_a_failure_while_closing_is_the_close(
    shadow_predictors: ShadowPredictors,
    beside: FakeFactory,
    served: ServedModel,
    idle_gate: IdleGate,
    suspension: Suspension,
) -> None:
    """Its process was killed on purpose: no crash to report."""
    shadow = shadow_predictors.open(served, "spare")

    def killed(inputs):  # type: ignore[no-untyped-def]
        idle_gate.close()
        raise WorkerCrashed("the predictor process ended during the run (killed)")

    beside.behaviour = killed
    with pytest.raises(Closed):
        shadow.run(row(1))

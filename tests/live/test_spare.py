"""Predictors beside the service: tested, warmed by shape, and timed only when undisturbed."""

from __future__ import annotations

import pytest

from app.engine.model import ServedModel
from app.engine.pause import Pause
from app.errors import BackendError, WorkerCrashed
from app.live.quiet import Closed, Quiet
from app.live.spare import Spares
from tests.engine.fakes import FakeFactory, doubled, row
from tests.live.fakes import nudged


def test_a_spare_is_proven_before_it_is_used(
    spares: Spares, beside: FakeFactory, served: ServedModel
) -> None:
    """A configuration that computes something else is refused, and its process ended."""
    beside.selftest = nudged
    with pytest.raises(BackendError, match="self-test"):
        spares.open(served, "spare")
    assert beside.opened[0].closed.is_set()


def test_a_shape_is_timed_from_its_second_run_on(
    spares: Spares, beside: FakeFactory, served: ServedModel
) -> None:
    """The first run of a shape prepares kernels and is several times slower."""
    seen: list[tuple[int, ...]] = []

    def counting(inputs):  # type: ignore[no-untyped-def]
        seen.append(inputs["x"].shape)
        return doubled(inputs)

    beside.behaviour = counting
    spare = spares.open(served, "spare")
    for job in (row(1), row(2), row(1, 2)):
        timed = spare.run(job)
        assert timed.seconds is not None
        assert timed.outputs["y"].tolist() == doubled(job)["y"].tolist()
    assert seen == [(1, 1), (1, 1), (1, 1), (1, 2), (1, 2)]


def test_a_run_that_a_request_interrupts_has_outputs_and_no_time(
    spares: Spares, beside: FakeFactory, served: ServedModel, quiet: Quiet
) -> None:
    """Also when the request has left again before the run ended."""
    spare = spares.open(served, "spare")
    spare.run(row(1))

    def interrupted(inputs):  # type: ignore[no-untyped-def]
        quiet.began()
        quiet.ended()
        return doubled(inputs)

    beside.behaviour = interrupted
    timed = spare.run(row(1))
    assert timed.seconds is None
    assert timed.outputs["y"].tolist() == [[2]]


def test_a_failure_while_closing_is_the_close(
    spares: Spares, beside: FakeFactory, served: ServedModel, quiet: Quiet, pause: Pause
) -> None:
    """Its process was killed on purpose: no crash to report."""
    spare = spares.open(served, "spare")

    def killed(inputs):  # type: ignore[no-untyped-def]
        quiet.close()
        raise WorkerCrashed("the predictor process ended during the run (killed)")

    beside.behaviour = killed
    with pytest.raises(Closed):
        spare.run(row(1))

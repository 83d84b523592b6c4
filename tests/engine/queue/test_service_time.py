"""How long the next run is expected to take."""

import pytest

from app.engine.queue.shape_queues import ServiceTime

KEY = (("x", "float32", (4,)),)


def of_runs(*seconds: float) -> ServiceTime:
    times = ServiceTime()
    for each in seconds:
        times.record(KEY, each)
    return times


def test_the_newest_run_weighs_a_quarter() -> None:
    assert of_runs(1.0, 2.0).expected(KEY) == pytest.approx(1.25)


def test_a_run_that_was_held_up_says_little_about_the_next() -> None:
    """A process that was stopped for half a minute: requests with ten seconds still fit."""
    times = of_runs(0.02, 30.0)
    assert times.expected(KEY) == pytest.approx(0.035)
    assert times.overall() == pytest.approx(0.035)


def test_runs_that_stay_slow_are_soon_expected() -> None:
    assert of_runs(0.02, *[1.0] * 10).expected(KEY) > 0.5


def test_a_first_run_of_no_time_is_no_limit() -> None:
    assert of_runs(0.0, 1.0).expected(KEY) == 1.0

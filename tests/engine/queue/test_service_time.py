"""How long the next run is expected to take."""

import pytest

from paddlepool.engine.queue.shape_queues import ServiceTime

KEY = (("x", "float32", (4,)),)


def of_runs(*seconds: float) -> ServiceTime:
    times = ServiceTime()
    for value in seconds:
        times.record(KEY, value)
    return times


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param((1.0, 2.0), 1.25, id="the newest weighs a quarter"),
        # Its process was stopped for half a minute: requests with ten seconds still fit.
        pytest.param((0.02, 30.0), 0.035, id="one that was held up says little"),
        pytest.param((0.0, 1.0), 1.0, id="a first one of no time is no limit"),
    ],
)
def test_a_run_weighs_as_much_as_it_says(runs: tuple[float, ...], expected: float) -> None:
    times = of_runs(*runs)
    assert times.expected(KEY) == times.expected(None) == pytest.approx(expected)


def test_runs_that_stay_slow_are_soon_expected() -> None:
    assert of_runs(0.02, *[1.0] * 10).expected(KEY) > 0.5

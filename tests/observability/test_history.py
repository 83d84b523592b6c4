"""The last hour in buckets: windows, intervals, quantiles, and a bound on its memory."""

import pytest

from paddlepool.observability.history import (
    INTERVAL_SECONDS,
    INTERVALS,
    Counts,
    History,
    Series,
    WindowedHistogram,
)
from tests.engine.fakes import ManualClock

ONE = Series("m1", 1, "one")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def history(clock: ManualClock) -> History:
    return History(clock)


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        pytest.param([0, 0, 0, 0], 0.5, None, id="no observations"),
        pytest.param([4, 0, 0, 0], 0.5, 0.5, id="from 0 in the first"),
        pytest.param([0, 4, 0, 0], 0.5, 1.5, id="in the middle of a bucket"),
        pytest.param([1, 1, 2, 0], 0.5, 2.0, id="at a bound"),
        pytest.param([0, 0, 0, 5], 0.99, 4.0, id="above every bound"),
        pytest.param([0, 2, 0, 0], 0.0, 1.0, id="the lowest"),
    ],
)
def test_a_quantile_is_promqls(buckets: list[int], share: float, expected: float | None) -> None:
    """The values that histogram_quantile gives for bounds 1, 2, 4."""
    found = Counts(buckets, 0.0).quantiles((1.0, 2.0, 4.0), [share])
    assert found == (None if expected is None else [expected])


def test_a_window_holds_what_came_in_since(history: History, clock: ManualClock) -> None:
    """Older runs leave it one interval after the other, and the hour keeps them all."""
    for _ in range(12):
        history.record_run(ONE, 0.01)
        clock.advance(INTERVAL_SECONDS)
    assert history.window(ONE, 6)[0].count == 5  # the newest of the six has only begun
    assert history.window(ONE, INTERVALS)[0].count == 12
    clock.advance(INTERVALS * INTERVAL_SECONDS)
    assert history.window(ONE, INTERVALS)[0].count == 0


def test_intervals_are_told_once_they_are_over(history: History, clock: ManualClock) -> None:
    """So that who asks for those after the last one misses none and gets none twice."""
    history.record_run(ONE, 0.01)
    assert history.runs(-1) == {}
    clock.advance(2 * INTERVAL_SECONDS)
    history.record_run(ONE, 0.02)
    history.record_run(ONE, 0.03)
    [(number, counts)] = history.runs(-1)[ONE]
    assert (number, counts.count) == (0, 1)
    clock.advance(INTERVAL_SECONDS)
    [(number, counts)] = history.runs(0)[ONE]
    assert (number, counts.count, counts.total) == (2, 2, pytest.approx(0.05))
    assert history.runs(2) == {}


def test_an_hour_is_all_that_is_kept(history: History, clock: ManualClock) -> None:
    for _ in range(2 * INTERVALS):
        history.record_run(ONE, 0.01)
        clock.advance(INTERVAL_SECONDS)
    [intervals] = history.runs(-1).values()
    assert len(intervals) == INTERVALS
    assert intervals[-1][0] == 2 * INTERVALS - 1
    assert all(counts.count == 1 for _, counts in intervals)
    assert history.window(ONE, INTERVALS)[0].count == INTERVALS - 1


def test_a_version_that_has_not_run_for_an_hour_is_forgotten(
    history: History, clock: ManualClock
) -> None:
    """A server that reloads for months does not grow by it."""
    for version in range(1, 50):
        history.record_run(Series("m1", version, "one"), 0.01)
        clock.advance((INTERVALS + 2) * INTERVAL_SECONDS)
    assert len(history._runs) == 1


def test_what_is_no_number_is_counted_above_every_bound() -> None:
    """An infinite drift does not make the sum useless."""
    histogram = WindowedHistogram((1.0, 2.0))
    histogram.observe(0, float("inf"))
    histogram.observe(0, 1.5)
    assert list(histogram.after(-1).buckets) == [0, 1, 1]
    assert histogram.after(-1).total == 1.5


def test_replays_have_a_window_too(history: History, clock: ManualClock) -> None:
    """Drift with its share of equal bits, and the mean of the task's measure."""
    history.drifted("m1", "one", 0.0, 1.0)
    history.drifted("m1", "one", 0.5, 0.5)
    history.drifted("m1", "one", 0.5, None)
    _, drift, agreement = history.window(ONE, 6)
    assert (drift.count, drift.buckets[0]) == (3, 1)
    assert agreement.mean() == 0.75
    clock.advance(7 * INTERVAL_SECONDS)
    assert history.window(ONE, 6)[2].mean() is None

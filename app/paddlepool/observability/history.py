"""Histograms of each instance group's last hour, with the buckets of /metrics and no database."""

import math
import threading
import time
from array import array
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

INTERVAL_SECONDS = 10.0
INTERVALS = 360
"""Number of intervals in an hour."""


def geometric(first: float, last: float, steps: int) -> tuple[float, ...]:
    """Return `steps` + 1 bucket bounds from `first` to `last`, each a constant factor apart.

    They are rounded to four digits.
    """
    factor = (last / first) ** (1 / steps)
    return tuple(float(f"{first * factor**step:.4g}") for step in range(steps + 1))


SECONDS = geometric(0.001, 10.0, 32)  # factor 1.33: a quantile is accurate to 15 %
RUN_SECONDS = geometric(10**-4.75, 10.0, 46)  # the same steps from 18 µs on, for small models
DRIFT = (0.0, *geometric(1e-8, 10.0, 27))  # three steps per decade; the first means "the same bits"
AGREEMENT = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)


class Series(NamedTuple):
    """One instance group of one model version."""

    model: str
    version: int
    group: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Observations in each bucket (the last is for those above every bound).

    `total` is the sum of the finite ones.
    """

    buckets: Sequence[int]
    total: float

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def mean(self) -> float | None:
        count = self.count
        return self.total / count if count else None

    def quantiles(self, bounds: Sequence[float], shares: Iterable[float]) -> list[float] | None:
        """Estimate the quantiles at `shares`, from 0 to 1; return None without observations.

        `bounds` are those of the buckets. The estimate is that of PromQL's `histogram_quantile`: it
        interpolates linearly inside the bucket that holds the rank, starting from 0 in the first
        bucket. A rank above the largest bound gives that bound.
        """
        buckets, below = self.buckets, list(accumulate(self.buckets))

        def at(rank: float) -> float:
            place = bisect_left(below, rank)
            while not buckets[place]:  # rank 0 lies in the first bucket that is not empty
                place += 1
            if place == len(bounds):
                return bounds[-1]
            upper = bounds[place]
            if place == 0 and upper <= 0:
                return upper
            lower = bounds[place - 1] if place else 0.0
            return lower + (upper - lower) * (rank - below[place] + buckets[place]) / buckets[place]

        return [at(share * below[-1]) for share in shares] if below[-1] else None


Cumulative = tuple[int, "array[int]", float]
"""An interval's number, and at its end the count of each bucket and the sum of all values."""


class WindowedHistogram:
    """A histogram that can return the observations after a given interval; not thread-safe.

    Intervals are numbered in the order of time. The histogram keeps the cumulative counts at the
    end of each interval with observations, so a window is one subtraction, however many
    observations it has. At most `INTERVALS` + 2 sets of counts are kept; a set has one count for
    each bucket.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._cumulative: deque[Cumulative] = deque(maxlen=INTERVALS + 2)
        self._cumulative.append((-1, array("Q", [0] * (len(bounds) + 1)), 0.0))

    def observe(self, interval: int, value: float) -> None:
        """Count a value in the first bucket whose bound it does not exceed, as Prometheus does.

        `interval` is the current one: never before that of an earlier call.
        """
        last, buckets, total = self._cumulative[-1]
        if last != interval:
            buckets = buckets[:]
        else:
            self._cumulative.pop()
        buckets[bisect_left(self._bounds, value)] += 1
        # A value that is not finite is counted, but must not change the mean.
        self._cumulative.append(
            (interval, buckets, total + value if math.isfinite(value) else total)
        )

    @property
    def last(self) -> int:
        """Number of the newest interval with an observation; -1 if there is none."""
        return self._cumulative[-1][0]

    def after(self, interval: int) -> Counts:
        """Return the observations after the end of `interval`, as far as they are still kept."""
        earlier = (entry for entry in reversed(self._cumulative) if entry[0] <= interval)
        return _difference(self._cumulative[-1], next(earlier, self._cumulative[0]))

    def intervals_after(self, interval: int) -> Iterator[tuple[int, Counts]]:
        """Yield each interval after `interval` that has observations, the oldest first."""
        for before, entry in pairwise(self._cumulative):
            if entry[0] > interval:
                yield entry[0], _difference(entry, before)


def _difference(later: Cumulative, earlier: Cumulative) -> Counts:
    buckets = [a - b for a, b in zip(later[1], earlier[1], strict=True)]
    return Counts(buckets, later[2] - earlier[2])


class History:
    """The last hour of all groups; thread-safe. Metrics records each value here and in /metrics.

    A replay is a request that ran again on another group, whose outputs are then compared with
    those of the default group.

    **Invariant**: memory is bounded. Series come from closed sets. If a series has not run for an
    hour, its runs are dropped when a new series begins. A histogram keeps at most 362 sets of
    counts: about 0.1 MB for the runs of one group, which have 48 buckets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._runs: dict[Series, WindowedHistogram] = {}
        self._replays: dict[tuple[str, str], tuple[WindowedHistogram, WindowedHistogram]] = (
            defaultdict(lambda: (WindowedHistogram(DRIFT), WindowedHistogram(AGREEMENT)))
        )

    def uptime(self) -> float:
        return self._clock() - self._began

    def interval(self) -> int:
        """Return the number of the current interval; 0 is the server's first."""
        return int(self.uptime() / INTERVAL_SECONDS)

    def record_run(self, series: Series, seconds: float) -> None:
        """Record the duration of one run in the current interval."""
        with self._lock:
            now = self.interval()
            histogram = self._runs.get(series)
            if histogram is None:  # drop the series that have not run for an hour
                oldest = now - INTERVALS
                self._runs = {key: runs for key, runs in self._runs.items() if runs.last >= oldest}
                histogram = self._runs[series] = WindowedHistogram(RUN_SECONDS)
            histogram.observe(now, seconds)

    def drifted(self, model: str, group: str, drift: float, agreement: float | None) -> None:
        """Record a replay in the current interval; `agreement` is None if it was not measured."""
        with self._lock:
            drifts, agreements = self._replays[model, group]
            drifts.observe(self.interval(), drift)
            if agreement is not None:
                agreements.observe(self.interval(), agreement)

    def window(self, series: Series, intervals: int) -> tuple[Counts, Counts, Counts]:
        """Return a group's observations in the last `intervals`, including the current one.

        These are the seconds of its runs, then the drift and the agreement of its replays. Replays
        are counted for all versions of the model together.
        """
        with self._lock:
            since = self.interval() - intervals
            runs = self._runs.get(series) or WindowedHistogram(RUN_SECONDS)
            drift, agreement = self._replays[series.model, series.group]
            return runs.after(since), drift.after(since), agreement.after(since)

    def runs(self, after: int) -> dict[Series, list[tuple[int, Counts]]]:
        """Return, for each series, the finished intervals in which it ran, oldest first.

        Only intervals of the last hour with a number above `after` count. A series without any is
        left out.
        """
        with self._lock:
            now = self.interval()
            after = max(after, now - INTERVALS - 1)
            intervals = {
                series: [entry for entry in histogram.intervals_after(after) if entry[0] < now]
                for series, histogram in self._runs.items()
            }
        return {series: counts for series, counts in intervals.items() if counts}

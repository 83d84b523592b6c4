"""Histograms of /metrics that take one lock and one search for each value."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class _Series:
    __slots__ = ("buckets", "total")

    def __init__(self, buckets: int) -> None:
        self.buckets = [0] * buckets
        self.total = 0.0


class HistogramFamily(Collector):
    """All series of one histogram; a series appears with its first observation.

    The library's own Histogram tests its buckets one by one and takes two locks for each value, and
    a request for one text records six values. May be used in any thread, for example in that of the
    replays.
    """

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], bounds: Sequence[float]
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = bounds
        self._lock = threading.Lock()
        self._le = [
            floatToGoString(bound)  # type: ignore[no-untyped-call]  # the library has no type here
            for bound in (*bounds, math.inf)
        ]
        self._series: dict[tuple[str, ...], _Series] = {}
        if not labels:
            self._series[()] = _Series(len(self._le))

    def observe(self, value: float, *labels: str) -> None:
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            series = self._series.get(labels)
            if series is None:
                series = self._series[labels] = _Series(len(self._le))
            series.buckets[bucket] += 1
            series.total += value

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self._name, self._text, "histogram")
        for values, series in list(self._series.items()):
            labels = dict(zip(self._labels, values, strict=True))
            counts = [float(count) for count in accumulate(series.buckets)]
            for bound, count in zip(self._le, counts, strict=True):
                metric.add_sample(f"{self._name}_bucket", labels | {"le": bound}, count)
            metric.add_sample(f"{self._name}_count", labels, counts[-1])
            metric.add_sample(f"{self._name}_sum", labels, series.total)
        yield metric

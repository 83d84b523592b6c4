"""How long runs take lately: the moving estimate behind admission and Retry-After."""

from __future__ import annotations

from collections import OrderedDict

from app.engine.queue.job import ShapeKey

WEIGHT = 0.25
MAX_SHAPES = 256
MOST_AT_ONCE = 4.0
"""A run counts as so many averages at most: one that was held up, by a process that was stopped or
a machine that stood still, says little about the next, and requests would be refused for it."""


class ServiceTime:
    """Moving average of the seconds of one run, for each shape; the newest run weighs a quarter.

    A shape not seen yet takes the average over all shapes, and nothing is known before the first
    run. Callers hold the batcher's lock.
    """

    def __init__(self) -> None:
        self._by_shape: OrderedDict[ShapeKey, float] = OrderedDict()
        self._overall: float | None = None

    def record(self, key: ShapeKey, seconds: float) -> None:
        self._overall = _moved(self._overall, seconds)
        self._by_shape[key] = _moved(self._by_shape.get(key), seconds)
        self._by_shape.move_to_end(key)
        if len(self._by_shape) > MAX_SHAPES:
            self._by_shape.popitem(last=False)

    def expected(self, key: ShapeKey) -> float:
        """Seconds of one run; 0 while nothing is known."""
        return self._by_shape.get(key, self._overall or 0.0)

    def overall(self) -> float:
        return self._overall or 0.0


def _moved(average: float | None, value: float) -> float:
    if not average:
        return value
    return average + WEIGHT * (min(value, MOST_AT_ONCE * average) - average)

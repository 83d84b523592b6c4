"""Reloads in the middle of a load, and the p99 of what was answered during and between them."""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections import defaultdict
from typing import Any

SHORTEST_PAUSE_SECONDS = 1.0
LOAD_SECONDS = 600.0
ENOUGH = 100
"""Answers needed of either kind before their 99th percentiles mean anything."""


class Reloads:
    """Loads a model anew, rests as long as that took, and so on: both see the same load.

    Times are seconds of time.time(); one event loop uses it, so that nothing needs a lock.
    """

    def __init__(self, host: str, *, model: str, key: str) -> None:
        self._request = urllib.request.Request(
            f"{host}/v2/repository/models/{model}/load", data=b"", headers={"X-Api-Key": key}
        )
        self.model = model
        self.done = 0
        self.failure = ""
        self._under_way = False
        self._ended = 0.0
        self._taken: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)

    def run(self) -> None:
        """Until it is killed, or until a reload fails."""
        pause = SHORTEST_PAUSE_SECONDS
        while True:
            time.sleep(pause)
            began, self._under_way = time.time(), True
            try:
                with urllib.request.urlopen(self._request, timeout=LOAD_SECONDS):
                    self.done += 1
            except OSError as error:
                self.failure = f"{self.model} could not be loaded anew: {error}"
                return
            finally:
                self._ended, self._under_way = time.time(), False
            pause = max(SHORTEST_PAUSE_SECONDS, self._ended - began)

    def answered(
        self, name: str, start_time: float, response_time: float, exception: Any, **_: Any
    ) -> None:
        """A listener of locust's event `request`; `response_time` in milliseconds."""
        if exception is None:
            during = self._under_way or start_time < self._ended
            self._taken[name, during].append(response_time)

    def judge(self, names: tuple[str, ...], limit: float) -> list[str]:
        """Print the p99 of each endpoint with reloads and without; returns what is wrong."""
        faults = [self.failure] if self.failure else []
        compared = [self._judge(name, limit) for name in names]
        if all(fault is None for fault in compared):
            faults.append("reloads cannot be judged: make --duration longer")
        return faults + [fault for fault in compared if fault]

    def _judge(self, name: str, limit: float) -> str | None:
        """None where there is too little to compare, else what is wrong, or nothing."""
        found = {during: self._taken[name, during] for during in (False, True)}
        fewest = min(map(len, found.values()))
        if fewest < ENOUGH:
            print(
                f"{name}: {fewest} answers during {self.done} reloads of {self.model} or between "
                f"them, fewer than {ENOUGH}: no p99 to compare"
            )
            return None
        p99 = {during: statistics.quantiles(taken, n=100)[-1] for during, taken in found.items()}
        ratio = p99[True] / p99[False]
        print(
            f"{name}: p99 {p99[True]:.1f} ms during {self.done} reloads of {self.model} "
            f"({len(found[True])} answers), {p99[False]:.1f} ms between them "
            f"({len(found[False])} answers): ratio {ratio:.3f} (limit {limit:.2f})"
        )
        return f"{name}: reloads add {ratio - 1:.0%} to p99" if ratio > limit else ""

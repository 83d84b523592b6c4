"""One reload in every other window of a load, and what that adds to the p99 of such a window."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

ORDER = (True, False, False, True)
"""Whether a window has a reload. Either kind leads a pair in turn: what drifts hits both alike."""
WARM_UP, REST = 0.5, 0.05
"""Shares of a window: before the first pair, which the server needs to warm up; and before a reload
and after one that would outlast its window."""
LOAD_SECONDS = 600.0
ENOUGH = 100
"""Answers needed with reloads and without before their 99th percentiles mean anything."""

Round = tuple[list[float], list[float]]
"""Milliseconds of an endpoint's answers in a window with a reload, and in that beside it."""


@dataclass(slots=True)
class Window:
    """When it and its reload began and ended, in seconds of time.time(): infinite if not yet.

    `taken` holds the milliseconds of its answers by endpoint.
    """

    began: float
    reloads: bool
    ended: float = math.inf
    reload_began: float = math.inf
    reload_ended: float = math.inf
    taken: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Reloads:
    """Windows in pairs, one of each pair with a reload; every answer counts for one window.

    One event loop uses it, so that nothing needs a lock.
    """

    def __init__(
        self,
        host: str,
        *,
        model: str,
        key: str,
        seconds: float,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`seconds` is the length of a window."""
        self._request = urllib.request.Request(
            f"{host}/v2/repository/models/{model}/load", data=b"", headers={"X-Api-Key": key}
        )
        self._model = model
        self._seconds = seconds
        self._clock, self._sleep = clock, sleep
        self._failure = ""
        self.windows = [Window(-math.inf, reloads=False)]  # the warm-up, in no pair
        self.met: defaultdict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Until it is killed, or until a reload fails.

        A reload that outlasts its window lengthens that one and all after it, to be as long.
        """
        seconds, rest = self._seconds, self._seconds * REST
        self._sleep(seconds * WARM_UP)
        for reloads in itertools.cycle(ORDER):
            window = self.begin(self._clock(), reloads=reloads)
            if reloads:
                self._sleep(rest)
                try:
                    self._reload(window)
                except OSError as error:
                    self._failure = f"{self._model} could not be loaded anew: {error}"
                    return
                seconds = max(seconds, window.reload_ended + rest - window.began)
            self._sleep(max(0.0, window.began + seconds - self._clock()))

    def begin(self, now: float, *, reloads: bool) -> Window:
        """End the window that is open, and open the next."""
        self.windows[-1].ended = now
        self.windows.append(Window(now, reloads))
        return self.windows[-1]

    def _reload(self, window: Window) -> None:
        """Raises OSError when the server refuses or does not answer."""
        window.reload_began = self._clock()
        try:
            with urllib.request.urlopen(self._request, timeout=LOAD_SECONDS):
                pass
        finally:
            window.reload_ended = self._clock()

    def answered(
        self, name: str, start_time: float, response_time: float, exception: Any, **_: Any
    ) -> None:
        """A listener of locust's event `request`; `response_time` in milliseconds.

        An answer counts for the window in which its request was sent. Counting slow ones for the
        next as well would let reloads that cost nothing look dear: slow ones reach into more.
        """
        if exception is not None:
            return
        end_time = start_time + response_time / 1000
        spanned = [
            window
            for window in self.windows
            if window.began <= end_time and start_time < window.ended
        ]
        spanned[0].taken[name].append(response_time)
        if any(each.reload_began < end_time and start_time < each.reload_ended for each in spanned):
            self.met[name].append(response_time)

    def judge(self, names: tuple[str, ...], limit: float) -> list[str]:
        """Print what reloads add to each endpoint's p99; returns what is wrong."""
        faults = [self._failure] if self._failure else []
        pairs = self._pairs()
        if pairs:
            reloads = [with_one.reload_ended - with_one.reload_began for with_one, _ in pairs]
            print(
                f"{len(pairs)} reloads of {self._model}, each in a window of its own, "
                f"took {min(reloads):.1f} to {max(reloads):.1f} s"
            )
        compared = [self._judge(name, pairs, limit) for name in names]
        if all(fault is None for fault in compared):
            faults.append("reloads cannot be judged: make --duration longer")
        return faults + [fault for fault in compared if fault]

    def _pairs(self) -> list[tuple[Window, Window]]:
        """Windows with a reload, each with that beside it; without a pair that has not ended."""
        return [
            (first, second) if first.reloads else (second, first)
            for first, second in zip(self.windows[1::2], self.windows[2::2], strict=False)
            if second.ended < math.inf
        ]

    def _judge(self, name: str, pairs: Sequence[tuple[Window, Window]], limit: float) -> str | None:
        """None where there is too little to compare, else what is wrong, or nothing."""
        both = [(on.taken[name], off.taken[name]) for on, off in pairs]
        rounds = [each for each in both if min(map(len, each)) > 1]  # fewer have no percentile
        on, off = ([each[mode] for each in rounds] for mode in (0, 1))
        fewest = min(sum(map(len, on)), sum(map(len, off)))
        if fewest < ENOUGH:
            print(
                f"{name}: {fewest} answers in windows with a reload of {self._model} or in those "
                f"without, fewer than {ENOUGH}: no p99 to compare"
            )
            return None
        ratio = ratio_of(rounds)
        low, high = resampled(rounds)
        print(
            f"{name}: p99 {p99(on):.1f} ms in {len(on)} windows with a reload of {self._model} "
            f"({sum(map(len, on))} answers), {p99(off):.1f} ms in those without "
            f"({sum(map(len, off))} answers): ratio {ratio:.3f} (limit {limit:.2f}), "
            f"{low:.3f} to {high:.3f} in 90 % of resamples"
        )
        single = [ratio_of([each]) for each in rounds if min(map(len, each)) >= ENOUGH]
        if single:
            print(f"{name}: ratio {min(single):.3f} to {max(single):.3f} in {len(single)} pairs")
        met = self.met[name]
        if len(met) > 1:
            print(
                f"{name}: {len(met)} requests met a reload:"
                + ",".join(f" p{q} {percentile([met], q):.1f} ms" for q in (50, 95, 99))
            )
        return f"{name}: a reload adds {ratio - 1:.0%} to p99" if ratio > limit else ""


def percentile(parts: Iterable[Sequence[float]], q: int) -> float:
    """Of all parts pooled, which are at least two figures; as interleaved_runs.py takes it."""
    return statistics.quantiles(itertools.chain(*parts), n=100, method="inclusive")[q - 1]


def p99(parts: Iterable[Sequence[float]]) -> float:
    return percentile(parts, 99)


def ratio_of(rounds: Sequence[Round]) -> float:
    return p99(on for on, _ in rounds) / p99(off for _, off in rounds)


def resampled(rounds: Sequence[Round]) -> tuple[float, float]:
    """90 % of the ratios lie within when rounds are drawn again, as in interleaved_runs.py."""
    draw = random.Random(20)
    drawn = [draw.choices(rounds, k=len(rounds)) for _ in range(400)]
    ratios = statistics.quantiles(map(ratio_of, drawn), n=20, method="inclusive")
    return ratios[0], ratios[-1]

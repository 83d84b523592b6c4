"""One candidate against the first group: the same inputs in turns, on as many threads."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from app.contracts.tensors import Tensors, shape_key
from app.engine.registry.model import ServedModel
from app.evidence.choice import clearly_faster, undecided
from app.evidence.proof import (
    HIDDEN_EFFECT,
    MIN_PAIRS,
    Evidence,
    Verdict,
    bitwise_equal,
    judge,
    max_abs_drift,
    ratio_interval,
)
from app.live.shadow_predictor import ShadowPredictor, ShadowPredictors, run_together
from app.repository.selftest import Quality

MAX_TOGETHER = 4
"""Of each group; more processes on more cores would tell no more."""

QUICK_PAIRS = 3
"""A candidate that lost every one of so many pairs is not measured further."""

MAX_PAIRS = 24
MAX_ATTEMPTS = 200
"""Of runs: one that a request interrupts is made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """What a race came to. `decided` is False where it should be run again."""

    fit: bool
    decided: bool
    reason: str
    quality: Quality
    resident_bytes: int
    verdict: Verdict | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    seconds: float | None = None


@dataclass(slots=True)
class _Times:
    """Seconds of a run, over how many ran at a time: what one run costs the machine."""

    own: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def lost_all(self) -> bool:
        return all(own > theirs for own, theirs in zip(self.own, self.theirs, strict=True))


class Race:
    """Opens both sides on entry and closes them on exit; owned by one thread.

    Entry and run() raise Closed, and as ServedModel.open_shadow does.
    """

    def __init__(
        self,
        shadow_predictors: ShadowPredictors,
        served: ServedModel,
        group: str,
        *,
        together: int = MAX_TOGETHER,
    ) -> None:
        """`together`: as many processes of each group at a time, if it has so many."""
        config = served.files.config
        self._shadow_predictors = shadow_predictors
        self._served = served
        self._group = group
        self._together = together
        self._first = config.default_group
        self._counts = {
            group: config.count_in_place(group),
            self._first: config.group(self._first).count,
        }
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Race:
        with contextlib.ExitStack() as opened:
            self._own = self._open(opened, self._group)
            self._theirs = self._open(opened, self._first)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _open(self, opened: contextlib.ExitStack, group: str) -> list[ShadowPredictor]:
        return [
            opened.enter_context(
                contextlib.closing(self._shadow_predictors.open(self._served, group))
            )
            for _ in range(min(self._together, self._counts[group]))
        ]

    def run(self, *, most_difference: float) -> Lap:
        """`most_difference` from the first group's answer to the golden input is admitted: the
        golden output itself may be kept to fewer digits."""
        golden = self._served.selftest
        outputs = run_together(self._own[:1], golden.inputs).outputs
        base_outputs = run_together(self._theirs[:1], golden.inputs).outputs
        quality = golden.quality(outputs)
        difference = max_abs_drift(outputs, base_outputs)
        if not difference <= most_difference:
            return Lap(
                fit=False,
                decided=True,
                reason=f"differs by {difference:.2g} from {self._first}, and exact "
                f"admits {most_difference:.2g}",
                quality=quality,
                resident_bytes=self._resident_bytes(),
            )
        times = self._measure()
        if len(times.own) == QUICK_PAIRS and times.lost_all():
            slower = statistics.median(times.own) / statistics.median(times.theirs)
            return Lap(
                fit=False,
                decided=True,
                reason=f"takes {slower:.2f} times as long as {self._first}",
                quality=quality,
                resident_bytes=self._resident_bytes(),
                gain=1 / slower,
            )
        verdict = judge(
            Evidence(
                base=self._first,
                seconds=times.own,
                base_seconds=times.theirs,
                bitwise_equal=bitwise_equal(outputs, base_outputs),
            )
        )
        return self._judged(verdict, quality, times)

    def _measure(self) -> _Times:
        times = _Times()
        own_count, their_count = (self._counts[name] for name in (self._group, self._first))
        inputs = cycle(_shapes(self._served))
        attempts = iter(range(MAX_ATTEMPTS))
        while not times.own or not self._enough(times):
            tensors = next(inputs)
            own = _undisturbed(self._own, tensors, attempts)
            theirs = _undisturbed(self._theirs, tensors, attempts)
            if own is None or theirs is None:
                break
            times.own.append(own / own_count)
            times.theirs.append(theirs / their_count)
        return times

    def _enough(self, times: _Times) -> bool:
        pairs = len(times.own)
        if pairs == QUICK_PAIRS:
            return times.lost_all()
        if pairs < MIN_PAIRS:
            return False
        _, low, high = _gain(times)
        sharp = high / low < HIDDEN_EFFECT and (clearly_faster(low) or not clearly_faster(high))
        return sharp or pairs >= MAX_PAIRS

    def _judged(self, verdict: Verdict, quality: Quality, times: _Times) -> Lap:
        pairs = len(times.own)
        if pairs < MIN_PAIRS:
            return Lap(
                fit=False,
                decided=False,
                reason=f"requests left time for {pairs} of the {MIN_PAIRS} pairs of runs it takes",
                quality=quality,
                resident_bytes=self._resident_bytes(),
            )
        gain, low, high = 1 / verdict.ratio, 1 / verdict.high, 1 / verdict.low
        fit = clearly_faster(low)
        noisy = "too noisy to tell: " if undecided(low, high) else ""
        return Lap(
            fit=fit,
            decided=not noisy,
            reason=f"{noisy}{gain:.2f} times the throughput of {self._first} "
            f"({low:.2f} to {high:.2f}, {pairs} pairs), {_told(quality)}, "
            f"{self._resident_bytes() / 1e6:.0f} MB a process",
            quality=quality,
            resident_bytes=self._resident_bytes(),
            verdict=verdict,
            gain=gain,
            gain_low=low,
            gain_high=high,
            seconds=statistics.median(times.own) * self._counts[self._group],
        )

    def _resident_bytes(self) -> int:
        return max(each.resident_bytes() for each in self._own)


def _told(quality: Quality) -> str:
    agreement = "" if quality.agreement is None else f", agreement {quality.agreement:.3f}"
    return f"mean difference {quality.mean_difference:.2g}{agreement}"


def _undisturbed(
    predictors: Sequence[ShadowPredictor], inputs: Tensors, attempts: Iterator[int]
) -> float | None:
    """The seconds of the first run that no request interrupts; None when no attempt is left."""
    for _ in attempts:
        if (seconds := run_together(predictors, inputs).seconds) is not None:
            return seconds
    return None


def _gain(times: _Times) -> tuple[float, float, float]:
    ratio, low, high = ratio_interval(times.own, times.theirs)
    return 1 / ratio, 1 / high, 1 / low


def _shapes(served: ServedModel) -> Sequence[Tensors]:
    """One input of each shape that the model is warmed up with, or the self-test's."""
    inputs = served.warmups or (served.selftest.inputs,)
    return list({shape_key(each): each for each in inputs}.values())

"""Which of several measured groups or configurations is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.contracts.status import Candidate
from app.evidence.proof import HIDDEN_EFFECT

GAIN = 1.10
"""A candidate is worth a change only when its whole interval is above this."""

EQUAL = 1.05
"""Candidates within this of the best count as equally fast."""

EXACT_DIFFERENCE = 1e-4
"""The largest difference from the first group of what counts as the same float32."""

T = TypeVar("T")


def clearly_faster(low: float) -> bool:
    return low > GAIN


def undecided(low: float, high: float) -> bool:
    """Whether the runs are too noisy to say that a candidate gains or does not."""
    return low <= GAIN < high and high / low > HIDDEN_EFFECT


def fastest_of(measured: Sequence[T], *, rate: Callable[[T], float], within: float) -> list[T]:
    """Those of the highest rate: all that are at most `within` times slower than the fastest."""
    fastest = max(map(rate, measured), default=0.0)
    return [each for each in measured if rate(each) * within >= fastest]


def best_of(candidates: Sequence[Candidate], lower_precision: frozenset[str]) -> Candidate | None:
    """The fit candidate with the highest throughput; of equals one in full precision, then one
    that answers a request alone sooner, as several threads on it do, then the one with the least
    memory. None where none is worth a change."""
    fit = [each for each in candidates if each.fit]
    equal = fastest_of(fit, rate=lambda each: each.gain or 0.0, within=EQUAL)
    soonest = min((_seconds(each) for each in equal), default=0.0)
    return min(
        equal,
        key=lambda each: (
            each.group in lower_precision,
            _seconds(each) > GAIN * soonest,
            each.resident_bytes or 0,
        ),
        default=None,
    )


def _seconds(candidate: Candidate) -> float:
    return math.inf if candidate.seconds is None else candidate.seconds


def in_one_line(candidates: Sequence[Candidate]) -> str:
    return "; ".join(f"{each.group}: {each.reason}" for each in candidates) or "none"

"""Decides whether a configuration takes effect, and which of several is best.

Paddle's switches can report "enabled" and change nothing, so verdicts rest on measurements. A group
is *effective* if its outputs or its times differ from those of its base. Outputs that vary from run
to run prove no difference. Times differ if the whole interval of their ratio is above
MINIMAL_EFFECT or below 1 / MINIMAL_EFFECT, and their medians are at least MINIMAL_SECONDS apart. A
group is *ineffective* if its outputs are bitwise equal and the difference of times is too small to
matter or no larger than noise. Otherwise it is *unproven*, for example if there are too few runs,
or if they are too noisy.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.status import Candidate
from paddlepool.contracts.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Timed:
    """One run's outputs and its time; `seconds` is None if requests interrupted the run.

    For a whole request to a composed model, `outputs` is the answer, and `seconds` the sum of the
    runs.
    """

    outputs: Any
    seconds: float | None


Runner = Callable[[Tensors], Timed]


@dataclass(slots=True)
class Runs:
    """One group's runs: seconds in the order of the rounds, and the first outputs per input.

    `repeatable` is False if an input gave different outputs in two runs.
    """

    seconds: list[float] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    repeatable: bool = True

    def add_outputs(self, index: int, outputs: Tensors) -> None:
        if index == len(self.outputs):
            self.outputs.append(outputs)
        elif self.repeatable:
            self.repeatable = bitwise_equal(outputs, self.outputs[index])


def interleave(
    runners: Mapping[str, Runner],
    inputs: Sequence[Tensors],
    *,
    rounds: int,
    enough: Callable[[Mapping[str, Runs]], bool] = lambda _runs: False,
) -> dict[str, Runs]:
    """Run every group once per round, cycling through the inputs; return the runs by group.

    Stops after `rounds`, or when `enough` returns True. Each round starts with another group than
    the one before. The times of a round count only if none of its runs was interrupted.
    """
    runs = {name: Runs() for name in runners}
    turns = deque(runners)
    for number in range(rounds):
        index = number % len(inputs)
        timed = {name: runners[name](inputs[index]) for name in turns}
        turns.rotate(-1)
        seconds = {name: run.seconds for name, run in timed.items() if run.seconds is not None}
        for name, run in timed.items():
            runs[name].add_outputs(index, run.outputs)
            if len(seconds) == len(timed):
                runs[name].seconds.append(seconds[name])
        if enough(runs):
            break
    return runs


MIN_PAIRS = 8
"""Fewer pairs cannot prove an effect on times at 99 % confidence.

Without an effect, one group is faster in all 8 pairs with a probability of 2 / 2**8 = 0.8 %.
"""

MINIMAL_EFFECT = 1.05
"""Smallest ratio of times that matters. A smaller one does not, even if it is significant."""

MINIMAL_SECONDS = 0.00025
"""Smallest difference of median times that matters: two equal processes can differ by that."""

HIDDEN_EFFECT = 1.25
"""A group is not called ineffective while noise could hide an effect this large."""

CONFIDENCE = 0.99
RESAMPLES = 2000
SEED = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a group is effective: True or False once that is proven, else None.

    `ratio` is the group's time divided by its base's, NaN without a pair of runs; `low` to `high`
    is its 99 % interval.
    """

    effective: bool | None
    reason: str
    ratio: float
    low: float
    high: float


def judge(own: Runs, base_runs: Runs, *, base: str) -> Verdict:
    """Decide whether a group is effective, from its runs and the interleaved runs of its base.

    `base` is the base's name, for the reason.
    """
    pairs = len(own.seconds)
    if pairs == 0:
        return Verdict(None, "it has not run yet", ratio=math.nan, low=0.0, high=math.inf)
    ratio, low, high = ratio_interval(own.seconds, base_runs.seconds)
    verdict = partial(Verdict, ratio=ratio, low=low, high=high)
    equal = all(map(bitwise_equal, own.outputs, base_runs.outputs))
    takes = f"{ratio:.2f} times the time of {base} ({low:.2f} to {high:.2f}, {pairs} pairs)"
    if not equal and own.repeatable and base_runs.repeatable:  # varying outputs prove nothing
        return verdict(True, f"other outputs than {base}; {takes}")
    same = f"the same bits as {base}" if equal else f"{base} varies from run to run"
    if pairs < MIN_PAIRS:
        return verdict(None, f"{same}, and only {pairs} of the required {MIN_PAIRS} pairs of runs")
    gap = abs(float(np.median(own.seconds)) - float(np.median(base_runs.seconds)))
    small = max(ratio, 1 / ratio) < MINIMAL_EFFECT or gap < MINIMAL_SECONDS
    if not small and (high < 1 / MINIMAL_EFFECT or low > MINIMAL_EFFECT):
        return verdict(True, f"{same}, {takes}")
    if low < 1 / HIDDEN_EFFECT or high > HIDDEN_EFFECT:
        return verdict(None, f"{same}, and the runs are too noisy to tell: {takes}")
    if equal and (small or low <= 1.0 <= high):
        return verdict(False, f"changes nothing: {same}, {takes}")
    return verdict(None, f"{same}, {takes}")


def median_ratio(seconds: Sequence[float], base_seconds: Sequence[float]) -> float:
    """Return the median ratio of paired times."""
    return float(np.exp(np.median(np.log(seconds) - np.log(base_seconds))))


def ratio_interval(
    seconds: Sequence[float], base_seconds: Sequence[float]
) -> tuple[float, float, float]:
    """Return the median ratio of paired times, and the ends of its 99 % bootstrap interval.

    There must be at least one pair. The same times always give the same interval. Logarithms give
    "twice as fast" and "twice as slow" the same weight.
    """
    logs: NDArray[np.float64] = np.log(seconds) - np.log(base_seconds)
    picks = np.random.default_rng(SEED).integers(0, len(logs), (RESAMPLES, len(logs)))
    medians = np.median(logs[picks], axis=1)
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1.0 - tail))
    return median_ratio(seconds, base_seconds), float(np.exp(low)), float(np.exp(high))


def bitwise_equal(outputs: Tensors, expected: Tensors) -> bool:
    return outputs.keys() == expected.keys() and all(
        outputs[name].dtype == expected[name].dtype
        and outputs[name].shape == expected[name].shape
        and outputs[name].tobytes() == expected[name].tobytes()
        for name in expected
    )


GAIN = 1.10
"""A candidate is worth a change only if its gain is above this factor, and so is the whole interval
of the gain, if one was measured."""

EQUAL = 1.05
"""Candidates within this factor of the best count as equally fast."""

SOONER, SOONER_COSTS = 1.5, 1.15
"""A candidate that answers a single request 1.5 times sooner may have up to 1.15 times less
throughput. The loss occurs only in the measurement, where all processes start at the same moment,
and not in service (decision 55)."""

EXACT_DIFFERENCE = 1e-4
"""Largest difference from the first group's outputs that counts as equal float32 results."""


def clearly_faster(low: float) -> bool:
    return low > GAIN


def undecided(low: float, high: float) -> bool:
    """Return whether the interval of a candidate's gain, `low` to `high`, is too wide to decide."""
    return low <= GAIN < high and high / low > HIDDEN_EFFECT


def best_of(candidates: Sequence[Candidate], less_preferred: frozenset[str]) -> Candidate | None:
    """Return the best candidate that is fit, or None if none is.

    Candidates whose gain is at least the highest one divided by EQUAL count as equal. Candidates
    that answer a single request much sooner than these, with a slightly lower gain (SOONER), are
    preferred to them. Among the remaining ones, those not in `less_preferred` win, then those that
    answer a single request within GAIN of the soonest, then the one with the least memory.
    """
    fit = [candidate for candidate in candidates if candidate.fit]

    def fastest(within: float) -> list[Candidate]:
        highest = max(map(_gain, fit), default=0.0)
        return [candidate for candidate in fit if _gain(candidate) * within >= highest]

    equal = fastest(EQUAL)
    limit = min(map(_seconds, equal), default=math.inf) / SOONER
    near = fastest(SOONER_COSTS)
    best = [candidate for candidate in near if _seconds(candidate) <= limit < math.inf] or equal
    soonest = min(map(_seconds, best), default=0.0)
    return min(
        best,
        key=lambda candidate: (
            candidate.group in less_preferred,
            _seconds(candidate) > GAIN * soonest,
            candidate.resident_bytes or 0,
        ),
        default=None,
    )


def _gain(candidate: Candidate) -> float:
    return candidate.gain or 0.0


def _seconds(candidate: Candidate) -> float:
    return math.inf if candidate.seconds is None else candidate.seconds

"""The verdict about a new version: bounds of its agreement, and limits of times and errors.

Agreement is a mean of values from 0 to 1: equal or different labels, overlaps of masks, shares of
equal characters. Its bounds follow from the inequality of Chernoff and Hoeffding, which holds for
every distribution of such values. For a version that always agrees, the lower bound is the exact
binomial one.

Looking at the evidence again and again would promote a bad version sooner or later. Therefore it is
judged, apart from errors, only at planned looks, each of which has half the risk of the one before:
after a quarter and half of `requests` comparisons, where it may be rejected, and after `requests`,
2 * `requests`, 4 * `requests` and so on, where it may also be promoted. The risks of promotions add
up to less than PROMOTION_RISK. The same holds for rejections because of the agreement of all
requests, and again for rejections because of one kind of answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from paddlepool.contracts.status import (
    CanaryStatus,
    SliceStatus,
    Trial,
    TrialEvidence,
    TrialPoint,
)
from paddlepool.evidence.verdict.proof import (
    CONFIDENCE,
    MIN_PAIRS,
    MINIMAL_SECONDS,
    median_ratio,
    ratio_interval,
)
from paddlepool.models.repository.config import PROMOTION_RISK, CanaryPolicy

EARLY_LOOKS = 2
SHOWN_SLICES = 5
MAX_POINTS = 60
"""Maximum points of a trial's history."""
STEPS = 50
"""Steps of a bisection; its result is then exact to 15 digits."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to promote a version (True) or reject it (False); None and no `reason`: undecided."""

    promote: bool | None
    reason: str


UNDECIDED = Verdict(None, "")


def lower_bound(mean: float, count: int, risk: float) -> float:
    """Return the lower confidence bound of an expected value, from `count` values in 0…1.

    `mean` is that of the values. The expected value is below the bound with a probability of at
    most `risk`.
    """
    return _bound(mean, count, risk, end=0.0)


def upper_bound(mean: float, count: int, risk: float) -> float:
    """Return the upper confidence bound of an expected value; see lower_bound()."""
    return _bound(mean, count, risk, end=1.0)


def _bound(mean: float, count: int, risk: float, *, end: float) -> float:
    """Return the value between `mean` and `end` that Chernoff's bound gives for `risk`."""
    if count == 0:
        return end
    limit = -math.log(risk) / count
    inner, outer = min(max(mean, 0.0), 1.0), end
    for _ in range(STEPS):
        middle = (inner + outer) / 2
        if _divergence(mean, middle) > limit:
            outer = middle
        else:
            inner = middle
    return outer


def _divergence(mean: float, expected: float) -> float:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    divergence = 0.0
    for share, of in ((mean, expected), (1 - mean, 1 - expected)):
        if share > 0:
            divergence += math.inf if of <= 0 else share * math.log(share / of)
    return divergence


def look(compared: int, requests: int) -> int | None:
    """Return the number of the look after `compared` requests; None if none is planned there.

    Look 0 is the first at which a version can be promoted, after `requests`, rounded up to a
    multiple of four. The two before it are -2 and -1.
    """
    number, at = -EARLY_LOOKS, -(-requests >> EARLY_LOOKS)
    while at < compared:
        number, at = number + 1, at * 2
    return number if at == compared else None


def judge(evidence: TrialEvidence, policy: CanaryPolicy) -> Verdict:
    """Decide whether a version replaces the current one, from all evidence so far.

    More errors than the policy allows reject it at any time. Everything else is decided at a look.
    """
    if evidence.errors > policy.errors:
        return Verdict(False, f"{_plural(evidence.errors, 'failure')}: {evidence.error}")
    number = look(evidence.compared, policy.requests)
    if number is None:
        return UNDECIDED
    if fault := _fault(evidence, policy, _risk(number + EARLY_LOOKS)):
        return Verdict(False, fault)
    if number < 0 or len(evidence.seconds) < MIN_PAIRS:
        return UNDECIDED
    mean = evidence.agreement / evidence.compared
    low = lower_bound(mean, evidence.compared, _risk(number))
    _, _, slowest = _ratio(evidence.seconds)
    in_time = slowest <= policy.slower or _little(evidence)
    if low >= policy.agreement and in_time:
        return Verdict(True, summary(evidence))
    return UNDECIDED


def _fault(evidence: TrialEvidence, policy: CanaryPolicy, risk: float) -> str:
    """Return what is proven to be wrong with a version, or an empty string.

    `risk` is the accepted probability of a wrong rejection because of the agreement of all
    requests, and again because of one kind of answers.
    """
    mean = evidence.agreement / evidence.compared
    high = upper_bound(mean, evidence.compared, risk)
    worst = "".join(f"; {slice_text(worst)}" for worst in slices(evidence)[:1])
    if high < policy.agreement:
        return (
            f"agreement {mean:.3f} with the current version in {evidence.compared} requests, at "
            f"most {high:.3f}, the limit is {policy.agreement:g}{worst}"
        )
    for name, (rows, total) in evidence.slices.items():
        high = upper_bound(total / rows, rows, risk / len(evidence.slices))
        if high < policy.slice_agreement:
            one = SliceStatus(name=name, rows=rows, agreement=total / rows)
            return f"{slice_text(one)}, the limit is {policy.slice_agreement:g}"
    if len(evidence.seconds) >= MIN_PAIRS:
        ratio, low, _ = _ratio(evidence.seconds)
        if low > policy.slower and not _little(evidence):
            return (
                f"{ratio:.2f} times the run time of the current version, at least {low:.2f}, the "
                f"limit is {policy.slower:g}"
            )
    return ""


def _risk(number: int) -> float:
    return float(PROMOTION_RISK / 2 ** (number + 1))


@lru_cache(maxsize=16)  # it takes 20 ms, and /metrics reads it at each scrape
def _ratio(seconds: tuple[tuple[float, float], ...]) -> tuple[float, float, float]:
    own, base = zip(*seconds, strict=True)
    return ratio_interval(own, base)


def _little(evidence: TrialEvidence) -> bool:
    """Return whether the median run times differ by less than MINIMAL_SECONDS."""
    own, base = np.median(evidence.seconds, axis=0)
    return bool(abs(own - base) < MINIMAL_SECONDS)


def slices(evidence: TrialEvidence) -> list[SliceStatus]:
    """Return the kinds of answers, the one with the most different rows first."""
    rows = [
        SliceStatus(name=name, rows=rows, agreement=total / rows)
        for name, (rows, total) in evidence.slices.items()
    ]
    return sorted(rows, key=lambda row: row.rows * (row.agreement - 1))


def slice_text(row: SliceStatus) -> str:
    return f"of {row.rows} answers {row.name!r}, a share of {row.agreement:.3f} agrees"


def summary(evidence: TrialEvidence) -> str:
    """Describe the evidence in one line."""
    if not evidence.compared:
        return f"no request compared, {_plural(evidence.errors, 'failure')}"
    mean = evidence.agreement / evidence.compared
    low, high = _interval(lower_bound, evidence), _interval(upper_bound, evidence)
    text = f"agreement {mean:.3f} ({low:.3f} to {high:.3f}) in {evidence.compared} requests"
    if len(evidence.seconds) >= MIN_PAIRS:
        ratio, fastest, slowest = _ratio(evidence.seconds)
        pairs = len(evidence.seconds)
        text += f", {ratio:.2f} times the run time ({fastest:.2f} to {slowest:.2f}, {pairs} pairs)"
    return f"{text}, {_plural(evidence.errors, 'failure')}"


def _interval(bound: Callable[[float, int, float], float], evidence: TrialEvidence) -> float:
    mean = evidence.agreement / evidence.compared
    return bound(mean, evidence.compared, (1 - CONFIDENCE) / 2)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def with_point(evidence: TrialEvidence, at: float) -> TrialEvidence:
    """Return the evidence with its present figures as the last point of its history.

    Of the points before, those at every 2^n-th request stay, so that there are at most MAX_POINTS.
    """
    compared, step = evidence.compared, 1
    while compared >= MAX_POINTS * step:
        step *= 2
    timed = len(evidence.seconds) >= MIN_PAIRS
    point = TrialPoint(
        compared=compared,
        at=at,
        agreement=evidence.agreement / compared,
        agreement_low=_interval(lower_bound, evidence),
        agreement_high=_interval(upper_bound, evidence),
        drift=evidence.drift,
        ratio=median_ratio(*zip(*evidence.seconds, strict=True)) if timed else None,
    )
    history = [row for row in evidence.history if row.compared % step == 0]
    return replace(evidence, history=(*history, point))


def status_of(trial: Trial, policy: CanaryPolicy | None) -> CanaryStatus:
    """Return the figures of a trial for a person; the policy is None if it is unknown."""
    evidence = trial.evidence
    compared = evidence.compared
    timed = len(evidence.seconds) >= MIN_PAIRS
    ratio, low, high = _ratio(evidence.seconds) if timed else (None, None, None)
    return CanaryStatus(
        model=trial.model,
        version=trial.version,
        current=trial.current,
        parts=trial.parts,
        current_parts=trial.current_parts,
        state=trial.state,
        reason=trial.reason,
        by=trial.by if trial.at is not None else "",
        since=trial.since,
        at=trial.at,
        requests=policy.requests if policy else 0,
        compared=compared,
        agreement=evidence.agreement / compared if compared else None,
        agreement_low=_interval(lower_bound, evidence) if compared else None,
        agreement_high=_interval(upper_bound, evidence) if compared else None,
        identical=evidence.identical,
        drift=evidence.drift,
        errors=evidence.errors,
        error=evidence.error,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        pairs=len(evidence.seconds),
        slices=tuple(slices(evidence)[:SHOWN_SLICES]),
        agreement_limit=policy.agreement if policy else None,
        ratio_limit=policy.slower if policy else None,
        history=evidence.history,
    )

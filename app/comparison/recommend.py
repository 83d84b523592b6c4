"""Which of the compared groups should answer requests here, and why, in one line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from app.comparison.result import Comparison, GroupResult

EQUAL = 0.10
"""A group that is faster by less is no reason to leave the default one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """`group` is the default group's name where nothing is worth a change, or nothing is `fit`."""

    group: str
    reason: str
    fit: bool = True


def recommend(found: Comparison, *, p95_seconds: float | None = None) -> Recommendation:
    """The fastest group that gives the default group's answers, within its own budget.

    Fast is what all cores do together in a second, or one request's median where that was not
    measured. With `p95_seconds` a slower 95th percentile, of what was measured, is no candidate.
    """
    default = next(each for each in found.groups if each.group == found.default_group)
    together = all(each.concurrent_per_second for each in found.groups)
    fit, unfit = [], []
    for each in found.groups:
        why = next(_objections(each, default, p95_seconds), None)
        if why is None:
            fit.append(each)
        else:
            unfit.append((each, why))
    if not fit:
        reason = "; ".join(f"{each.group}: {why}" for each, why in unfit)
        return Recommendation(group=default.group, reason=reason, fit=False)
    best = max(fit, key=lambda each: _rate(each, together))
    if best is not default and default in fit:
        gain = _rate(best, together) / _rate(default, together)
        best = best if gain >= 1 + EQUAL else default
    reason = _praise(best, default, found, together)
    faster = [
        (each, why)
        for each, why in unfit
        if each is not best and _rate(each, together) > _rate(best, together)
    ]
    if faster:
        each, why = max(faster, key=lambda pair: _rate(pair[0], together))
        reason += f"; {each.group} would be faster, but {why}"
    return Recommendation(group=best.group, reason=reason)


def _objections(
    each: GroupResult, default: GroupResult, p95_seconds: float | None
) -> Iterator[str]:
    slowest = each.concurrent_p95_seconds or each.p95_seconds
    if p95_seconds is not None and slowest > p95_seconds:
        yield f"its p95 is {slowest * 1000:.0f} ms, asked for are {p95_seconds * 1000:.0f}"
    if each is default:
        return
    mean, least = each.budget.mean_difference, each.budget.agreement
    if math.isinf(each.mean_difference) or (mean is not None and each.mean_difference > mean):
        limit = "" if mean is None else f", limit {mean:g}"
        yield f"its outputs differ by {each.mean_difference:.3g} on average{limit}"
    if each.agreement is not None and least is not None and each.agreement < least:
        yield f"its answers agree by {each.agreement:.3f}, limit {least:g}"


def _rate(each: GroupResult, together: bool) -> float:
    if together and each.concurrent_per_second:
        return each.concurrent_per_second
    return 1 / each.p50_seconds


def _praise(best: GroupResult, default: GroupResult, found: Comparison, together: bool) -> str:
    if best is default:
        return f"no other group with the same answers is {EQUAL:.0%} faster"
    what = "requests a second on all cores" if together else "speed of one request"
    text = f"{_rate(best, together) / _rate(default, together):.2f} × the {what}"
    text = f"{text} of {default.group}, p50 × {best.ratio_to_default:.2f}"
    text += f", mean difference {best.mean_difference:.1e}"
    if best.agreement is not None:
        text += f", {found.agreement_name} {best.agreement:.4f}"
    return text

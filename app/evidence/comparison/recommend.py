"""Recommends one of the compared groups, with the reason in one line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from app.contracts.status import Candidate
from app.evidence.comparison.result import Comparison, GroupResult
from app.evidence.verdict.proof import GAIN, best_of, clearly_faster
from app.models.repository.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A recommended group: the default group if no change is worthwhile or nothing is `fit`."""

    group: str
    reason: str
    fit: bool = True


def recommend(
    found: Comparison, config: ModelConfig, *, p95_seconds: float | None = None
) -> Recommendation:
    """Recommend the group that the server's `auto` would choose on the same figures; see best_of().

    Throughput is the rate of all cores together, or the inverse of one request's median time if
    that rate was not measured. Rejects groups whose answers differ from the default group's by more
    than their budget, groups that config.toml does not offer as candidates, and groups whose 95th
    percentile is above `p95_seconds`, if given.
    """
    results = {each.group: each for each in found.groups}
    default = results[found.default_group]
    together = all(each.concurrent_per_second for each in found.groups)
    objections = {
        name: next(_objections(each, default, config, p95_seconds), "")
        for name, each in results.items()
    }
    if all(objections.values()):
        reason = "; ".join(f"{name}: {why}" for name, why in objections.items())
        return Recommendation(group=default.group, reason=reason, fit=False)
    candidates = [
        _candidate(each, default, together, why, unless_faster=not objections[default.group])
        for name, why in objections.items()
        if (each := results[name]) is not default
    ]
    chosen = best_of(candidates, config.lower_precision())
    best = default if chosen is None else results[chosen.group]
    reason = _praise(best, default, found, together)
    faster = [
        name
        for name, why in objections.items()
        if why and _rate(results[name], together) > _rate(best, together)
    ]
    if faster:
        name = max(faster, key=lambda name: _rate(results[name], together))
        reason += f"; {name} would be faster, but {objections[name]}"
    return Recommendation(group=best.group, reason=reason)


def _candidate(
    each: GroupResult, default: GroupResult, together: bool, why: str, *, unless_faster: bool
) -> Candidate:
    """Build a candidate; with `unless_faster`, it must be clearly faster than the default group."""
    gain = _rate(each, together) / _rate(default, together)
    return Candidate(
        group=each.group,
        fit=not why and (clearly_faster(gain) or not unless_faster),
        reason=why,
        gain=gain,
        seconds=each.concurrent_p50_seconds if together else each.p50_seconds,
        resident_bytes=each.resident_bytes,
    )


def _objections(
    each: GroupResult, default: GroupResult, config: ModelConfig, p95_seconds: float | None
) -> Iterator[str]:
    slowest = each.concurrent_p95_seconds or each.p95_seconds
    if p95_seconds is not None and slowest > p95_seconds:
        yield f"its p95 is {slowest * 1000:.0f} ms, asked for are {p95_seconds * 1000:.0f}"
    if each is default:
        return
    if not config.group(each.group).candidate:
        yield "config.toml says candidate = false"
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
    if len(found.groups) == 1:
        return "no other group ran"
    if best is default:
        return f"no other group with the same answers is {GAIN - 1:.0%} faster"
    what = "requests a second on all cores" if together else "speed of one request"
    text = f"{_rate(best, together) / _rate(default, together):.2f} × the {what}"
    text = f"{text} of {default.group}, p50 × {best.ratio_to_default:.2f}"
    text += f", mean difference {best.mean_difference:.1e}"
    if best.agreement is not None:
        text += f", {found.agreement_name} {best.agreement:.4f}"
    return text

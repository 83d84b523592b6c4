"""A finished comparison: one row per group, the recommended group, and both as text."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tqdm.utils import disp_len

from app.contracts.status import Candidate
from app.contracts.tensors import largest_difference, mean_difference
from app.evidence.comparison.measure import Load, TaskComparison
from app.evidence.verdict.proof import GAIN, Runs, best_of, clearly_faster, judge
from app.models.repository.config import Budget, InstanceGroup, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """One group. Times are of a single request; `concurrent_*` times are of a busy machine.

    `max_abs_drift`, `mean_difference` (of the output that differs most) and `agreement` compare
    with the default group. `budget` is the allowed difference. `instances` is the number of
    predictors that were busy at once.
    """

    group: str
    backend: str
    threads: int
    requests: int
    p50_seconds: float
    p95_seconds: float
    ratio_to_default: float
    ratio_to_slowest: float
    max_abs_drift: float
    mean_difference: float
    agreement: float | None
    budget: Budget
    base: str | None
    effective: bool | None
    reason: str
    resident_bytes: int
    instances: int | None = None
    concurrent_p50_seconds: float | None = None
    concurrent_p95_seconds: float | None = None
    concurrent_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All results of one `paddlepool compare`.

    `refused` and `not_busy` (not measured on all cores) map groups to reasons. `weights_sha256` is
    the digest of the params file, or of the program; it identifies the weights even if a version
    number is used again. `default_group` is the baseline of all ratios.
    """

    model: str
    version: int
    weights_sha256: str
    machine: str
    cores: float
    samples: tuple[str, ...]
    default_group: str
    agreement_name: str | None
    groups: tuple[GroupResult, ...]
    refused: Mapping[str, str]
    not_busy: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        for each in values["groups"]:
            each["budget"] = each["budget"].model_dump()
        values["refused"] = [{"group": g, "reason": r} for g, r in self.refused.items()]
        values["thread_budgets"] = self.budgets()
        return values

    def budgets(self) -> str:
        by_threads: dict[int, list[str]] = {}
        for each in self.groups:
            by_threads.setdefault(each.threads, []).append(each.group)
        if len(by_threads) == 1:
            [threads] = by_threads
            return f"Thread budgets are equal: {threads} of {self.cores:g} cores for every group."
        parts = "; ".join(f"{n}: {', '.join(names)}" for n, names in sorted(by_threads.items()))
        return (
            f"Thread budgets are UNEQUAL on {self.cores:g} cores, threads {parts}. "
            "Compare times only within one of these."
        )


def group_results(
    config: ModelConfig,
    runs: Mapping[str, Runs],
    *,
    loads: Mapping[str, Load],
    resident: Mapping[str, int],
    task: TaskComparison | None,
    tolerance: float,
) -> tuple[GroupResult, ...]:
    """One row per group, slowest first. `tolerance` is the self-test's."""
    default = runs[config.default_group]
    medians = {name: _quantile(each.seconds, 0.5) for name, each in runs.items()}
    slowest = max(medians.values())
    rows = []
    for name, each in runs.items():
        group, load = config.group(name), loads.get(name)
        base, effective, reason = _proof(config, group, runs)
        pairs = list(zip(each.outputs, default.outputs, strict=True))
        rows.append(
            GroupResult(
                group=name,
                backend=group.backend,
                threads=group.threads,
                requests=len(each.seconds),
                p50_seconds=medians[name],
                p95_seconds=_quantile(each.seconds, 0.95),
                ratio_to_default=medians[name] / medians[config.default_group],
                ratio_to_slowest=medians[name] / slowest,
                max_abs_drift=max(largest_difference(a, b) for a, b in pairs),
                mean_difference=float(np.mean([mean_difference(a, b) for a, b in pairs])),
                agreement=float(np.mean([task.agreement(a, b) for a, b in pairs]))
                if task is not None
                else None,
                budget=group.budget or Budget(mean_difference=group.tolerance or tolerance),
                base=base,
                effective=effective,
                reason=reason,
                resident_bytes=resident[name],
                instances=load.instances if load else None,
                concurrent_p50_seconds=_quantile(load.seconds, 0.5) if load else None,
                concurrent_p95_seconds=_quantile(load.seconds, 0.95) if load else None,
                concurrent_per_second=load.per_second if load else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.p50_seconds))


def _proof(
    config: ModelConfig, group: InstanceGroup, runs: Mapping[str, Runs]
) -> tuple[str | None, bool | None, str]:
    base = config.base_of(group.name)
    if base is None or base not in runs:
        base = config.default_group
    if base == group.name:
        return None, None, "it is the reference of the other groups"
    verdict = judge(runs[group.name], runs[base], base=base)
    return base, verdict.effective, verdict.reason


def _quantile(seconds: Sequence[float], share: float) -> float:
    return float(np.quantile(seconds, share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A recommended group; the default group if no change is worthwhile or no group is fit."""

    group: str
    reason: str
    fit: bool = True


def recommend(
    found: Comparison, config: ModelConfig, *, p95_seconds: float | None = None
) -> Recommendation:
    """Recommend the group that the server's `auto` would choose on the same figures; see best_of().

    Groups are compared by their throughput on all cores. If that was not measured for every group,
    all are compared by the inverse of a single request's median time. A group is rejected if it is
    beyond its budget, is no candidate, or has a 95th percentile above `p95_seconds`.
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
    reason = _describe_choice(best, default, found, together)
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
    """Turn a result into a candidate. With `unless_faster`, it is unfit unless clearly faster."""
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
        yield f"its p95 is {slowest * 1000:.0f} ms, the limit is {p95_seconds * 1000:.0f}"
    if each is default:
        return
    if not config.group(each.group).candidate:
        yield "config.toml sets candidate = false"
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


def _describe_choice(
    best: GroupResult, default: GroupResult, found: Comparison, together: bool
) -> str:
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


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns two spaces apart."""
    widths = [max(disp_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell + " " * (width - disp_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def comparison_rows(found: Comparison) -> list[list[str]]:
    concurrent = any(each.concurrent_per_second is not None for each in found.groups)
    head = ["group", "threads", "p50", "p95", "× default", "speed-up", "drift", "mean difference"]
    head += [found.agreement_name] if found.agreement_name else []
    head += ["effective", "memory"]
    head += ["busy: instances", "busy: p50", "busy: per second"] if concurrent else []
    return [head, *(_row(found, each, concurrent) for each in found.groups)]


def _row(found: Comparison, each: GroupResult, concurrent: bool) -> list[str]:
    default = " (default)" if each.group == found.default_group else ""
    cells = [
        each.group + default,
        str(each.threads),
        seconds(each.p50_seconds),
        seconds(each.p95_seconds),
        f"{each.ratio_to_default:.2f}",
        f"{1 / each.ratio_to_slowest:.1f}",
        f"{each.max_abs_drift:.1e}" if each.max_abs_drift else "0",
        f"{each.mean_difference:.1e}" if each.mean_difference else "0",
    ]
    if found.agreement_name:
        cells.append("-" if each.agreement is None else f"{each.agreement:.4f}")
    effective = {True: "yes", False: "NO", None: "unproven"}[each.effective]
    cells += [effective, f"{each.resident_bytes / 1e6:.0f} MB"]
    if concurrent:
        busy = each.concurrent_p50_seconds, each.concurrent_per_second
        cells += (
            ["-", "-", "-"]
            if busy[0] is None or busy[1] is None
            else [str(each.instances), seconds(busy[0]), f"{busy[1]:.2f}"]
        )
    return cells


def reasons(found: Comparison) -> list[str]:
    """The finding for each group, and why the others were left out or refused."""
    lines = [f"{each.group}: {each.reason}" for each in found.groups]
    lines += [f"{group}: left out on all cores: {why}" for group, why in found.not_busy.items()]
    return lines + [f"{group}: refused: {why}" for group, why in found.refused.items()]


def seconds(value: float) -> str:
    """A time with three digits: 0.412 s, 41.2 ms."""
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1000:.3g} ms"

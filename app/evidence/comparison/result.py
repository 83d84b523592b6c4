"""A finished comparison as plain values: one row per group with ratios, drift and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from app.contracts.tensors import largest_difference, mean_difference
from app.evidence.comparison.measure import Load
from app.evidence.comparison.tasks import TaskComparison
from app.evidence.verdict.proof import judge
from app.evidence.verdict.sampling import Runs, evidence
from app.models.repository.config import Budget, InstanceGroup, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """One group. Times are of a single request; `concurrent_*` times are of a busy machine.

    `max_abs_drift`, `mean_difference` and `agreement` compare with the default group;
    `mean_difference` is the mean absolute difference of the output that differs most. `budget` is
    the allowed difference: the group's own budget, or the tolerance that applies to every output.
    `effective` is None while unproven. `instances` is the number of predictors that were busy at
    once, None if that was not measured.
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

    `refused` and `not_busy` (measured alone, but not on all cores) map groups to reasons.
    `weights_sha256` is the digest of the version's params file, or of its program if it has none: a
    version number can be reused for other weights. `default_group` is the baseline of all ratios:
    the model's default group, or the first named group if the default group was not named.
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
        """Describe whether the groups had equal numbers of threads."""
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
    """Return one row per group, slowest first. `runs` must include the default group.

    `tolerance` is the self-test's.
    """
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
        return None, None, "it is what the others are compared with"
    verdict = judge(evidence(runs[group.name], runs[base], base=base))
    return base, verdict.effective, verdict.reason


def _quantile(seconds: Sequence[float], share: float) -> float:
    return float(np.quantile(seconds, share))

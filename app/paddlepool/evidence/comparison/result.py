"""Compares a model's instance groups: measures them, recommends one, and formats the results."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from tqdm.utils import disp_len

from paddlepool.contracts.errors import BackendError, ConfigError
from paddlepool.contracts.ports import PredictorFactory
from paddlepool.contracts.resources import available_cores, available_memory
from paddlepool.contracts.status import Candidate
from paddlepool.contracts.tensors import largest_difference, mean_difference
from paddlepool.engine.registry.axes import RaggedAxes
from paddlepool.evidence.comparison.measure import (
    SLICES,
    Load,
    TaskComparison,
    choose_samples,
    measure_concurrent,
    measure_single,
    open_groups,
    runs_of_slice,
)
from paddlepool.evidence.verdict.proof import (
    GAIN,
    MIN_PAIRS,
    Runs,
    best_of,
    clearly_faster,
    judge,
    ratio_interval,
)
from paddlepool.models.repository.config import Budget, ModelConfig
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.observability.build_info import describe_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """Results of one instance group.

    Times are of a single request; `concurrent_*` figures are measured with all cores busy. Three
    figures compare the outputs with those of Comparison.default_group: `max_abs_drift` is the
    largest difference, `mean_difference` and `agreement` are means over the samples. `budget`
    limits `mean_difference` and `agreement`. `effective` is whether outputs or times differ from
    those of the group `base`; it is None if that is not proven, or if `base` is None. `instances`
    is the number of predictors that were busy at once. `gain_low` to `gain_high` is the 99 %
    interval of Comparison.times_as_fast(); they are None if there are fewer than MIN_PAIRS pairs.
    """

    group: str
    backend: str
    threads: int
    requests: int
    p50_seconds: float
    p95_seconds: float
    max_abs_drift: float
    mean_difference: float
    agreement: float | None
    budget: Budget
    base: str | None
    effective: bool | None
    reason: str
    resident_bytes: int
    gain_low: float | None = None
    gain_high: float | None = None
    instances: int | None = None
    concurrent_p50_seconds: float | None = None
    concurrent_p95_seconds: float | None = None
    concurrent_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All results of one `paddlepool compare`.

    `refused` (groups that cannot run) and `not_busy` (groups that could not be measured on all
    cores) map groups to reasons. `weights_sha256` is the digest of the params file, or of the
    program if there is none; it identifies the weights even if a version number is used again.
    `default_group` is the reference of all differences and of times_as_fast().
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

    def times_as_fast(self) -> dict[str, float]:
        """Return each group's requests per second on all cores, divided by the default group's.

        If any group was not measured on all cores, return for each group the default group's median
        time of a single request divided by the group's.
        """
        rates = {
            row.group: (self.on_all_cores and row.concurrent_per_second) or 1 / row.p50_seconds
            for row in self.groups
        }
        return {name: rate / rates[self.default_group] for name, rate in rates.items()}

    @property
    def on_all_cores(self) -> bool:
        return all(group.concurrent_per_second for group in self.groups)

    def as_json(self) -> dict[str, Any]:
        values, gains = asdict(self), self.times_as_fast()
        for group in values["groups"]:
            group["budget"] = group["budget"].model_dump()
            group["times_as_fast"] = gains[group["group"]]
        values["refused"] = [{"group": g, "reason": r} for g, r in self.refused.items()]
        values["thread_budgets"] = self.budgets()
        return values

    def budgets(self) -> str:
        by_threads: dict[int, list[str]] = {}
        for group in self.groups:
            by_threads.setdefault(group.threads, []).append(group.group)
        if len(by_threads) == 1:
            [threads] = by_threads
            return f"Thread budgets are equal: {threads} of {self.cores:g} cores for every group."
        parts = "; ".join(
            f"with {n}: {', '.join(names)}" for n, names in sorted(by_threads.items())
        )
        return (
            f"The groups have UNEQUAL numbers of threads on {self.cores:g} cores: {parts}. "
            "Compare times only between groups with the same number."
        )


def compare(
    files: ModelFiles,
    *,
    open_predictor: PredictorFactory,
    task: TaskComparison | None,
    groups: Sequence[str] = (),
    inputs: Sequence[Path] = (),
    requests: int = 20,
    concurrent: bool = True,
) -> Comparison:
    """Measure `groups`, or all groups if empty, alone and, if `concurrent`, with every core busy.

    They are compared with the default group, or with the first of `groups` if the default group is
    not among them. Samples are padded as requests are. Raises ConfigError for unknown groups,
    BackendError if the group to compare with cannot be opened, and the errors of choose_samples(),
    RaggedAxes() and its pad(), ModelFiles.selftest(), open_groups() and a run.
    """
    config = files.config
    known = [group.name for group in config.instance_group]
    for name in groups:
        if name not in known:
            raise ConfigError(f"there is no instance group {name!r}, there are {', '.join(known)}")
    if groups and config.default_group not in groups:
        config = config.model_copy(update={"default_group": groups[0]})
    chosen = [group for group in config.instance_group if group.name in (groups or known)]
    selftest = files.selftest(task.agreement if task else None)
    ragged = RaggedAxes(config, files.manifest.inputs)
    samples = [
        (name, ragged.pad(tensors))
        for name, tensors in choose_samples(task, inputs, selftest, files.manifest.inputs)
    ]
    cores = available_cores()
    loads: dict[str, Load] = {}
    not_busy: dict[str, str] = {}
    with ExitStack() as stack:
        opened = partial(
            open_groups, files, stack=stack, open_predictor=open_predictor, selftest=selftest
        )
        with _progress(len(chosen), "opening", "group") as bar:
            predictors, refused = opened(chosen, opened_one=bar.update)
        if config.default_group in refused:
            kind = "default" if config is files.config else "first"
            raise BackendError(
                f"the {kind} group {config.default_group} cannot run: "
                f"{refused[config.default_group]}"
            )
        alone = {name: several[0] for name, several in predictors.items()}
        with _progress(len(alone) * requests, "alone", "run") as bar:
            runs = measure_single(alone, samples, requests=requests, tick=bar.update)
        resident = {name: predictor.resident_bytes() for name, predictor in alone.items()}
        if concurrent:
            # Open more predictors until every core has a thread, in half of the free memory.
            more = {name: max(1, int(cores) // config.group(name).threads) - 1 for name in alone}
            room = available_memory() // 2
            for name, count in more.items():
                if count * resident[name] > room:
                    not_busy[name] = "not enough memory to keep every core busy"
                else:
                    room -= count * resident[name]
            fitting = [config.group(name) for name in alone if name not in not_busy]
            total = sum(more[group.name] for group in fitting)
            with _progress(total, "opening", "process") as bar:
                extra, failed = opened(
                    fitting, count=lambda group: more[group.name], opened_one=bar.update
                )
            not_busy |= failed
            busy = {name: [alone[name], *others] for name, others in extra.items()}
            total = SLICES * sum(runs_of_slice(requests, len(several)) for several in busy.values())
            with _progress(total, "all cores", "run") as bar:
                loads = measure_concurrent(busy, samples, requests=requests, tick=bar.update)
    return Comparison(
        model=files.name,
        version=files.version,
        weights_sha256=files.manifest.files[files.manifest.params or files.manifest.program].sha256,
        machine=describe_machine(cores=cores),
        cores=cores,
        samples=tuple(name for name, _ in samples),
        default_group=config.default_group,
        agreement_name=task.agreement_name if task else None,
        groups=group_results(
            config,
            runs,
            loads=loads,
            resident=resident,
            task=task,
            tolerance=selftest.mean_tolerance,
        ),
        refused=refused,
        not_busy=not_busy,
    )


def _progress(total: int, what: str, unit: str) -> "tqdm[Any]":
    """Return a progress bar, which only a terminal shows; without a terminal, print a line.

    Minutes of silence would suggest a hang.
    """
    if total and not sys.stderr.isatty():
        print(f"{what}: {unit} 1 to {total} …", file=sys.stderr, flush=True)
    return tqdm(total=total, desc=what, unit=unit, leave=False, disable=None)


def group_results(
    config: ModelConfig,
    runs: Mapping[str, Runs],
    *,
    loads: Mapping[str, Load],
    resident: Mapping[str, int],
    task: TaskComparison | None,
    tolerance: float,
) -> tuple[GroupResult, ...]:
    """Return the results of the groups, the highest median time of a single request first.

    `tolerance` is the allowed mean difference of groups that set neither a budget nor a tolerance.
    """
    default = runs[config.default_group]
    medians = {name: float(np.median(measured.seconds)) for name, measured in runs.items()}
    together = all(name in loads for name in runs)
    paired = {name: loads[name].slices if together else runs[name].seconds for name in runs}
    rows = []
    for name, measured in runs.items():
        group = config.group(name)
        base = config.base_of(name)
        if base is None or base not in runs:
            base = config.default_group
        verdict = None if base == name else judge(measured, runs[base], base=base)
        pairs = list(zip(measured.outputs, default.outputs, strict=True))
        more: dict[str, Any] = {}
        if load := loads.get(name):
            p50, p95 = map(float, np.quantile(load.seconds, (0.5, 0.95)))
            more = {"concurrent_p50_seconds": p50, "concurrent_p95_seconds": p95}
            more |= {"instances": load.instances, "concurrent_per_second": load.per_second}
        if len(paired[name]) >= MIN_PAIRS:
            # The base's times are divided by the group's, so that above 1 is faster.
            _, low, high = ratio_interval(paired[config.default_group], paired[name])
            more |= {"gain_low": low, "gain_high": high}
        rows.append(
            GroupResult(
                group=name,
                backend=group.backend,
                threads=group.threads,
                requests=len(measured.seconds),
                p50_seconds=medians[name],
                p95_seconds=float(np.quantile(measured.seconds, 0.95)),
                max_abs_drift=max(largest_difference(a, b) for a, b in pairs),
                mean_difference=float(np.mean([mean_difference(a, b) for a, b in pairs])),
                agreement=float(np.mean([task.agreement(a, b) for a, b in pairs]))
                if task is not None
                else None,
                budget=group.budget or Budget(mean_difference=group.tolerance or tolerance),
                base=base if verdict else None,
                effective=verdict.effective if verdict else None,
                reason=verdict.reason if verdict else "it is the reference of the other groups",
                resident_bytes=resident[name],
                **more,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.p50_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended group: the default group if no other is worth a change or all are rejected.

    `fit` is False if all groups are rejected, including the default group.
    """

    group: str
    reason: str
    fit: bool = True


def recommend(
    comparison: Comparison, config: ModelConfig, *, p95_seconds: float | None = None
) -> Recommendation:
    """Recommend the default group, or another one by the rules of best_of().

    Groups are compared by Comparison.times_as_fast(). Another group must be more than GAIN times as
    fast as the default group, by the whole interval if there is one, unless the default group is
    rejected. A group is rejected if its 95th percentile, with all cores busy where that was
    measured, is above `p95_seconds`. Groups other than the default one are also rejected if they
    exceed their budget or set candidate = false.
    """
    results = {group.group: group for group in comparison.groups}
    default = results[comparison.default_group]
    together, gains = comparison.on_all_cores, comparison.times_as_fast()
    lowest = {
        name: gains[name] if result.gain_low is None else result.gain_low
        for name, result in results.items()
    }
    objections = {
        name: next(_objections(result, default, config, p95_seconds), "")
        for name, result in results.items()
    }
    if all(objections.values()):
        reason = "; ".join(f"{name}: {why}" for name, why in objections.items())
        return Recommendation(group=default.group, reason=reason, fit=False)
    candidates = [
        Candidate(
            group=name,
            fit=not objections[name]
            and (clearly_faster(lowest[name]) or bool(objections[default.group])),
            reason=objections[name],
            gain=gains[name],
            seconds=result.p50_seconds,
            resident_bytes=result.resident_bytes,
        )
        for name, result in results.items()
        if result is not default
    ]
    chosen = best_of(candidates, config.lower_precision())
    best = default if chosen is None else results[chosen.group]
    if len(results) == 1:
        reason = "no other group ran"
    elif best is default:
        reason = f"no other group with the same answers is {GAIN - 1:.0%} faster"
    else:
        where = "on all cores" if together else "with one request"
        reason = f"{gains[best.group]:.2f} times as fast as {default.group} {where}"
        reason += f"{_interval(best)}, mean difference {best.mean_difference:.1e}"
        if best.agreement is not None:
            reason += f", {comparison.agreement_name} {best.agreement:.4f}"
    faster = [name for name, why in objections.items() if why and gains[name] > gains[best.group]]
    if faster:
        name = max(faster, key=gains.__getitem__)
        reason += f"; {name} would be faster, but {objections[name]}"
    noisy = [name for name, why in objections.items() if not why and clearly_faster(gains[name])]
    if best is default and noisy:
        name = max(noisy, key=gains.__getitem__)
        reason += f"; {name} was {gains[name]:.2f} times as fast{_interval(results[name])}, which "
        reason += "may be noise"
    return Recommendation(group=best.group, reason=reason)


def _interval(result: GroupResult) -> str:
    if result.gain_low is None or result.gain_high is None:
        return ""
    return f" ({result.gain_low:.2f} to {result.gain_high:.2f})"


def _objections(
    result: GroupResult, default: GroupResult, config: ModelConfig, p95_seconds: float | None
) -> Iterator[str]:
    slowest = result.concurrent_p95_seconds or result.p95_seconds
    if p95_seconds is not None and slowest > p95_seconds:
        yield f"its p95 is {slowest * 1000:.0f} ms, the limit is {p95_seconds * 1000:.0f}"
    if result is default:
        return
    if not config.group(result.group).candidate:
        yield "config.toml sets candidate = false"
    mean, least = result.budget.mean_difference, result.budget.agreement
    if math.isinf(result.mean_difference) or (mean is not None and result.mean_difference > mean):
        limit = "" if mean is None else f", limit {mean:g}"
        yield f"its outputs differ by {result.mean_difference:.3g} on average{limit}"
    if result.agreement is not None and least is not None and result.agreement < least:
        yield f"its answers agree by {result.agreement:.3f}, limit {least:g}"


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Format a table of cells as text, with left-aligned columns two spaces apart."""
    widths = [max(map(disp_len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell + " " * (width - disp_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """Return the titles of the columns, then the cells of each group."""
    busy = any(group.concurrent_per_second is not None for group in comparison.groups)
    rows, gains = [], comparison.times_as_fast()
    for group in comparison.groups:
        cells = {
            "group": group.group
            + (" (default)" if group.group == comparison.default_group else ""),
            "threads": str(group.threads),
            "p50": seconds(group.p50_seconds),
            "p95": seconds(group.p95_seconds),
            "times as fast": f"{gains[group.group]:.2f}",
            "drift": f"{group.max_abs_drift:.1e}" if group.max_abs_drift else "0",
            "mean difference": f"{group.mean_difference:.1e}" if group.mean_difference else "0",
        }
        if comparison.agreement_name:
            share = "-" if group.agreement is None else f"{group.agreement:.4f}"
            cells[comparison.agreement_name] = share
        cells["effective"] = {True: "yes", False: "NO", None: "unproven"}[group.effective]
        cells["memory"] = f"{group.resident_bytes / 1e6:.0f} MB"
        if busy:
            p50, rate = group.concurrent_p50_seconds, group.concurrent_per_second
            cells["busy: instances"] = "-" if group.instances is None else str(group.instances)
            cells["busy: p50"] = "-" if p50 is None else seconds(p50)
            cells["busy: per second"] = "-" if rate is None else f"{rate:.2f}"
        rows.append(cells)
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def reasons(comparison: Comparison) -> list[str]:
    """Return a line for each reason in the comparison: of effects, `not_busy` and `refused`."""
    lines = [f"{group.group}: {group.reason}" for group in comparison.groups]
    lines += [
        f"{group}: left out on all cores: {why}" for group, why in comparison.not_busy.items()
    ]
    return lines + [f"{group}: refused: {why}" for group, why in comparison.refused.items()]


def seconds(value: float) -> str:
    """Format a time, as seconds with three decimals; below 0.1 s, as milliseconds (41.2 ms)."""
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1000:.3g} ms"

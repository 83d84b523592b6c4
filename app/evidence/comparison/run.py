"""One comparison from files to result: open, check, measure alone and under load, judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app.contracts.errors import BackendError, ConfigError
from app.contracts.ports import Predictor, PredictorFactory
from app.contracts.resources import available_cores, available_memory
from app.evidence.comparison.measure import (
    SLICES,
    ComparisonOf,
    Load,
    Opened,
    choose_samples,
    golden_test,
    measure_concurrent,
    measure_single,
    open_groups,
    runs_of_slice,
)
from app.evidence.comparison.result import Comparison, group_results
from app.models.repository.config import InstanceGroup, ModelConfig
from app.models.repository.layout import ModelFiles
from app.models.repository.selftest import SelfTest
from app.observability.build_info import describe_machine


def compare(
    files: ModelFiles,
    *,
    open_predictor: PredictorFactory,
    comparison_of: ComparisonOf,
    groups: Sequence[str] = (),
    inputs: Sequence[Path] = (),
    requests: int = 20,
    concurrent: bool = True,
) -> Comparison:
    """Compare the named groups, or all.

    The baseline is the default group, or the first named group if the default group is not named.
    Raises ConfigError for unknown groups or inputs, BackendError if the baseline is refused.
    """
    config = files.config
    if groups and config.default_group not in groups:
        config = config.model_copy(update={"default_group": groups[0]})
    chosen = choose_groups(config, groups)
    task = comparison_of(files.info())
    selftest = golden_test(files, task)
    samples = choose_samples(task, inputs, selftest)
    cores = available_cores()
    with _progress(len(chosen), "opening", "group") as bar:
        opened = open_groups(
            files, chosen, open_predictor=open_predictor, selftest=selftest, opened_one=bar.update
        )
    with closing(opened):
        if config.default_group in opened.refused:
            reason = opened.refused[config.default_group]
            kind = "default" if config is files.config else "first"
            raise BackendError(f"the {kind} group {config.default_group} cannot run: {reason}")
        alone = {name: several[0] for name, several in opened.predictors.items()}
        with _progress(len(alone) * requests, "alone", "run") as bar:
            runs = measure_single(alone, samples, requests=requests, tick=bar.update)
        resident = {name: predictor.resident_bytes() for name, predictor in alone.items()}
        loads: dict[str, Load] = {}
        not_busy: Mapping[str, str] = {}
        if concurrent:
            extra = _open_for_all_cores(files, opened, resident, cores, open_predictor, selftest)
            not_busy = extra.refused
            with closing(extra):
                busy: dict[str, list[Predictor]] = {
                    name: [*several, *extra.predictors.get(name, [])]
                    for name, several in opened.predictors.items()
                    if name not in extra.refused
                }
                runs_each = (runs_of_slice(requests, len(several)) for several in busy.values())
                with _progress(SLICES * sum(runs_each), "all cores", "run") as bar:
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
            tolerance=selftest.tolerance,
        ),
        refused=opened.refused,
        not_busy=not_busy,
    )


def _progress(total: int, what: str, unit: str) -> tqdm[Any]:
    return tqdm(total=total, desc=what, unit=unit, leave=False, disable=None)


def choose_groups(config: ModelConfig, names: Sequence[str]) -> list[InstanceGroup]:
    """The named groups, or all. Raises ConfigError for an unknown name."""
    known = [group.name for group in config.instance_group]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no instance group {name!r}, there are {', '.join(known)}")
    return [group for group in config.instance_group if group.name in (names or known)]


def _open_for_all_cores(
    files: ModelFiles,
    opened: Opened,
    resident: Mapping[str, int],
    cores: float,
    open_predictor: PredictorFactory,
    selftest: SelfTest,
) -> Opened:
    """Open more predictors until every core has a thread; they may take half of the free memory."""
    groups = [files.config.group(name) for name in opened.predictors]
    more = {group.name: max(1, int(cores) // group.threads) - 1 for group in groups}
    room = available_memory() // 2
    fitting, refused = [], {}
    for group in groups:
        needed = more[group.name] * resident[group.name]
        if needed > room:
            refused[group.name] = "not enough memory to keep every core busy"
            continue
        room -= needed
        fitting.append(group)
    total = sum(more[group.name] for group in fitting)
    with _progress(total, "opening", "process") as bar:
        found = open_groups(
            files,
            fitting,
            open_predictor=open_predictor,
            selftest=selftest,
            count=lambda group: more[group.name],
            opened_one=bar.update,
        )
    return Opened(predictors=found.predictors, refused=refused | found.refused)

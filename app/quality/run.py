"""Measures one model version: its task's data, its default predictor proven, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.contracts.ports import Agreement, PredictorFactory, ServedModelInfo
from app.contracts.tensors import Tensors
from app.quality.bench import PredictorBench
from app.quality.digits import DigitQuality
from app.quality.loss import compare_outputs, differences
from app.quality.ports import Findings, Source, TaskQuality
from app.quality.report import Report
from app.repository.layout import ModelFiles
from app.repository.manifest import Manifest

FIRST_RUN_SECONDS = 120.0

Measure = Callable[[ServedModelInfo, Source], TaskQuality]

NETWORKS: Mapping[str, Measure] = {"mnist": DigitQuality}
"""Models without a pipeline, by the network in their manifest."""


def task_quality(
    files: ModelFiles, source: Source, tasks: Mapping[str, Measure | None]
) -> TaskQuality | None:
    """What is measured of this model, its data read; None where nothing is defined for it.

    Raises ConfigError where the data are absent or unfit.
    """
    network = str((files.manifest.network or {}).get("name"))
    name = files.config.pipeline
    build = NETWORKS.get(network) if name is None else tasks.get(name)
    return build(files.info(), source) if build is not None else None


def measure_model(
    files: ModelFiles,
    task: TaskQuality,
    *,
    open_predictor: PredictorFactory,
    agreement: Agreement | None = None,
    limit: int | None = None,
) -> Report:
    """Run the task's data through one predictor of the default group, after its self-test.

    `agreement` is the measure of the model's task, which the group's budget may ask for.
    """
    group = files.config.default_group
    findings, _ = _findings(files, task, group, agreement, open_predictor)
    return _report(files, group, findings, limit)


def measure_loss(
    files: ModelFiles,
    task: TaskQuality,
    group: str,
    *,
    agreement: Agreement | None,
    open_predictor: PredictorFactory,
    limit: int | None = None,
) -> Report:
    """The figures of `group`, and how each differs from what the default group gives.

    A positive difference of MAE or ECE is a loss, of all others a gain.
    """
    base = files.config.default_group
    before, expected = _findings(files, task, base, agreement, open_predictor)
    after, found = _findings(files, task, group, agreement, open_predictor)
    tables = (*after.tables, *differences(before, after, base=base))
    compared = compare_outputs(found, expected, agreement=agreement, base=base)
    return _report(files, group, Findings(tables=(*tables, compared), notes=after.notes), limit)


def _findings(
    files: ModelFiles,
    task: TaskQuality,
    name: str,
    agreement: Agreement | None,
    open_predictor: PredictorFactory,
) -> tuple[Findings, list[Tensors]]:
    """What the task found, and the outputs of every job in order."""
    group = files.config.group(name)
    test = files.selftest(agreement).judging(group)
    predictor = test.opened(open_predictor, files.spec(group), timeout=FIRST_RUN_SECONDS)
    try:
        bench = PredictorBench(
            predictor,
            max_batch_size=max(1, files.config.dynamic_batching.max_batch_size),
            label=f"{files.name} {name}",
        )
        return task.measure(bench), bench.outputs
    finally:
        predictor.close()


def _report(files: ModelFiles, group: str, findings: Findings, limit: int | None) -> Report:
    return Report(
        model=files.name,
        version=files.version,
        group=group,
        fingerprint=_fingerprint(files.manifest),
        findings=findings,
        limit=limit,
    )


def _fingerprint(manifest: Manifest) -> str:
    """The version's; of an official release its own, for each machine exports that anew, with a
    golden output that is rounded as this processor rounds."""
    official = manifest.weights.get("origin") == "official release"
    return str(manifest.weights["sha256"]) if official else manifest.sha256()

"""Measures one model version: its task's data, its default predictor proven, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.contracts.ports import PredictorFactory, ServedModelInfo
from app.quality.bench import PredictorBench
from app.quality.digits import DigitQuality
from app.quality.ports import Source, TaskQuality
from app.quality.report import Report
from app.repository.layout import ModelFiles
from app.repository.manifest import Manifest
from app.repository.selftest import read_selftest

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
    limit: int | None = None,
) -> Report:
    """Run the task's data through one predictor of the default group, after its self-test."""
    manifest, group = files.manifest, files.config.group(files.config.default_group)
    test = read_selftest(files.directory, manifest.inputs, manifest.outputs)
    predictor = open_predictor(files.spec(group))
    try:
        test.within(group.tolerance).check(predictor, timeout=FIRST_RUN_SECONDS)
        bench = PredictorBench(
            predictor,
            max_batch_size=max(1, files.config.dynamic_batching.max_batch_size),
            label=files.name,
        )
        findings = task.measure(bench)
    finally:
        predictor.close()
    return Report(
        model=files.name,
        version=files.version,
        group=group.name,
        fingerprint=_fingerprint(manifest),
        findings=findings,
        limit=limit,
    )


def _fingerprint(manifest: Manifest) -> str:
    """The version's; of an official release its own, for each machine exports that anew, with a
    golden output that is rounded as this processor rounds."""
    official = manifest.weights.get("origin") == "official release"
    return str(manifest.weights["sha256"]) if official else manifest.sha256()

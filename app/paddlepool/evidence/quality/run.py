"""Measures one model version on its task's data, or on MNIST's held-out digits."""

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Agreement, PredictorFactory, ServedModelInfo
from paddlepool.contracts.tensors import Tensors, mean_difference
from paddlepool.evidence.quality import ports
from paddlepool.evidence.quality.report import Report
from paddlepool.models.repository.layout import ComposedFiles, ModelFiles

TRAIN_SHARE = 8_000
"""Number of pictures at the start of the t10k file that train the committed model."""


class Digits(NamedTuple):
    """Pictures and their classes: `images` float32 [N,784] in -1..1, `labels` int64 [N]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def read_digits(directory: Path, *, part: str) -> Digits:
    """Read one part of MNIST, "t10k" or "train", from its idx files.

    Raises ConfigError if a file is missing or damaged, or if there are not as many labels as
    pictures of 28×28.
    """
    arrays: list[NDArray[np.uint8]] = []
    for kind, axes in (("images", 3), ("labels", 1)):
        path = directory / f"{part}-{kind}-idx{axes}-ubyte.gz"
        try:
            raw = gzip.decompress(ports.read_bytes(path))
            magic, *shape = struct.unpack_from(f">{1 + axes}I", raw)
            if magic != 0x0800 + axes:
                raise ConfigError(f"{path}: magic number {magic:#x}, expected {0x0800 + axes:#x}")
            arrays.append(np.frombuffer(raw, np.uint8, offset=4 * (1 + axes)).reshape(shape))
        except (gzip.BadGzipFile, EOFError, struct.error, ValueError, zlib.error) as error:
            raise ConfigError(f"{path} is not a gzipped idx file") from error
    pixels, labels = arrays
    if pixels.shape != (len(labels), 28, 28):
        size = "×".join(map(str, pixels.shape))
        raise ConfigError(f"{directory}: {size} pixels of {part}, expected {len(labels)}×28×28")
    images = pixels.reshape(len(pixels), 784).astype(np.float32) / np.float32(127.5) - 1
    return Digits(images, labels.astype(np.int64))


class DigitQuality:
    """Measures a digit classifier's accuracy: the share of held-out digits that it gets right.

    Raises ConfigError as read_digits() does.
    """

    def __init__(self, info: ServedModelInfo, source: ports.Source) -> None:
        self._input, self._output = info.inputs[0].name, info.outputs[0].name
        images, labels = read_digits(source.data / "mnist", part="t10k")
        end = None if source.limit is None else TRAIN_SHARE + source.limit
        self._digits = Digits(images[TRAIN_SHARE:end], labels[TRAIN_SHARE:end])

    def measure(self, predictor: ports.EvaluationPredictor) -> ports.Findings:
        jobs = [{self._input: image[None]} for image in self._digits.images]
        outputs = predictor.run(jobs, what="digits")
        logits = np.concatenate([np.asarray(o[self._output], np.float32) for o in outputs])
        right = logits.argmax(axis=1) == self._digits.labels
        table = ports.Table(
            key="held_out",
            title=f"The digits of MNIST's t10k file after the first {TRAIN_SHARE:,}",
            columns=("digits", "accuracy"),
            rows=(("held-out digits", (len(right), float(right.mean()))),),
        )
        return ports.Findings(tables=(table,))


Quality = ports.TaskQuality | ports.ComposedQuality | None
Measure = Callable[[ServedModelInfo, ports.Source], Quality]


def task_quality(
    files: ModelFiles | ComposedFiles, source: ports.Source, tasks: Mapping[str, Measure | None]
) -> Quality:
    """Return the model's measure of quality with its data loaded, or None if it has none.

    `tasks` maps pipelines to their tasks' `quality`. Raises ConfigError if data cannot be read.
    """
    build = tasks.get(files.config.pipeline or "")
    if isinstance(files, ComposedFiles):
        return build(files.info({}), source) if build is not None else None
    if build is None and (files.manifest.network or {}).get("name") == "mnist":
        build = DigitQuality
    return build(files.info(), source) if build is not None else None


def measure_model(
    files: ModelFiles,
    task: ports.TaskQuality,
    *,
    open_predictor: PredictorFactory,
    group: str | None = None,
    agreement: Agreement | None = None,
    limit: int | None = None,
) -> Report:
    """Run the task's data through one predictor of the default group, after its self-test.

    With `group`, which must exist, report the figures of that group and their differences from the
    default group's. `limit` is only reported: it is the limit with which `task` has read its
    data. Raises ManifestError, and the errors of SelfTest.opened() and Predictor.run().
    """

    def run(name: str) -> tuple[ports.Findings, list[Tensors]]:
        """Return the task's findings, and the outputs of every job in order."""
        chosen = files.config.group(name)
        test = files.selftest(agreement).judging(chosen)
        with closing(test.opened(open_predictor, files.spec(chosen))) as predictor:
            batch = max(1, files.config.dynamic_batching.max_batch_size)
            runner = ports.EvaluationPredictor(
                predictor, max_batch_size=batch, label=f"{files.name} {name}"
            )
            return task.measure(runner), runner.outputs

    base = files.config.default_group
    findings, expected = run(base)
    if group is not None:
        after, outputs = run(group)
        compared = compare_outputs(outputs, expected, agreement=agreement, base=base)
        tables = (*after.tables, *differences(findings, after, base=base), compared)
        findings = ports.Findings(tables=tables, notes=after.notes)
    # Each machine exports an official release itself, so versions of one release differ.
    weights = files.manifest.weights
    official = weights.get("origin") == "official release"
    return Report(
        model=files.name,
        version=files.version,
        group=group or base,
        fingerprint=str(weights["sha256"]) if official else files.manifest.sha256(),
        findings=findings,
        limit=limit,
    )


def measure_composed(
    files: ComposedFiles,
    task: ports.ComposedQuality,
    answers_of: Callable[[str | None], Mapping[str, Any]],
    *,
    base: str,
    group: str | None = None,
    limit: int | None = None,
) -> Report:
    """Measure a composed model with its default groups, which `base` names.

    With `group`, which names groups as ComposedModel.parts_with() takes them, report the figures of
    these and their differences from those of `base`. `answers_of` returns the answers to the task's
    samples with such groups, with the default groups for None.
    """
    findings = task.measure(answers_of(None))
    if group is not None:
        after = task.measure(answers_of(group))
        tables = (*after.tables, *differences(findings, after, base=base))
        findings = ports.Findings(tables=tables, notes=after.notes)
    return Report(
        model=files.name,
        version=files.version,
        group=group or base,
        fingerprint=files.manifest.sha256(),
        findings=findings,
        limit=limit,
    )


def differences(before: ports.Findings, after: ports.Findings, *, base: str) -> list[ports.Table]:
    """Build, for each table of `after`, a table of its differences from `before`.

    `before` must have the same tables and rows. `base` is the name of its group, for the titles. A
    count that is equal in both tables is repeated in place of the difference 0.
    """
    known = {table.key: dict(table.rows) for table in before.tables}
    return [
        ports.Table(
            key=f"{table.key}_difference",
            title=f"{table.title}: difference from {base}",
            columns=table.columns,
            rows=tuple(
                (name, tuple(map(_difference, values, known[table.key][name])))
                for name, values in table.rows
            ),
        )
        for table in after.tables
    ]


def compare_outputs(
    own: Sequence[Tensors], expected: Sequence[Tensors], *, agreement: Agreement | None, base: str
) -> ports.Table:
    """Build a table that compares the outputs of all jobs with those of the group `base`."""
    pairs = list(zip(own, expected, strict=True))
    drifts = [mean_difference(*pair) for pair in pairs]
    figures: dict[str, ports.Value] = {"runs": len(drifts)}
    figures |= {"mean difference": float(np.mean(drifts)), "worst mean": max(drifts)}
    if agreement is not None:
        figures["agreement"] = float(np.mean([agreement(*pair) for pair in pairs]))
    title, rows = f"Outputs against those of {base}", (("all", tuple(figures.values())),)
    return ports.Table(key="outputs", title=title, columns=tuple(figures), rows=rows)


def _difference(after: ports.Value, before: ports.Value) -> ports.Value:
    return after if isinstance(after, int) and after == before else after - before

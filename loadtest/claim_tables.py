"""Measure the two published tables of speed-ups again, with the same steps on this machine.

Ratios are to the dynamic graph of the same table and thread budget; published seconds come from
another machine. If there are fewer `requests` than published, the published seconds are scaled,
never ours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import cast

import numpy as np

from app.contracts.errors import BackendError
from app.contracts.ports import AgreementOf, Predictor, PredictorFactory
from app.contracts.tensors import Tensors
from app.evidence.comparison.measure import Sample, measure_concurrent, measure_single, open_groups
from app.making.programs.derive import INT8
from app.models.repository.config import InstanceGroup
from app.models.repository.layout import ModelFiles
from app.models.repository.selftest import SelfTest

U2NETP_SECONDS = {"dygraph": 2.1827, "jit": 1.9110, "native": 1.8756, "onednn": 0.5750}
U2NETP_REQUESTS = 12
BERT_SECONDS = {"dygraph": 29.46, "onnxruntime": 10.87, "onednn": 7.70}
BERT_REQUESTS = 1000
PADDED = 128
"""The published padding of every text in tokens, which is also the served model's maximum."""
BUCKETS = (16, 24, 32, 48, 64, 96, PADDED)
LENGTHS = (7, 17, 19, 20, 22, 24, 26, 28, 31, 33, 36, 40, 44, 49, 55, 62, 72, 89, 114, 128)
"""Tokens of the texts: the 20 middles of equal shares of 40,374 posts (SMP2020-EWECT)."""
ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """A row. `seconds` are the median of one picture, or the sum over all texts, as published."""

    label: str
    threads: str
    seconds: float
    ratio: float
    published_seconds: float | None = None
    published_ratio: float | None = None

    @property
    def ahead(self) -> bool | None:
        return None if self.published_ratio is None else self.ratio > self.published_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTable:
    title: str
    unit: str
    requests: int
    rows: tuple[ClaimRow, ...]
    refused: Mapping[str, str]


def beaten(table: ClaimTable) -> dict[str, bool]:
    """For each published ratio, whether one of the rows that measure it again exceeds it."""
    found: dict[float, list[ClaimRow]] = {}
    for row in table.rows:
        if row.published_ratio not in (None, 1.0):
            found.setdefault(row.published_ratio or 0.0, []).append(row)
    return {rows[-1].label: any(row.ahead for row in rows) for rows in found.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """How to open predictors (as served, and all with its allocator), and how to judge
    precision."""

    served: PredictorFactory
    tuned: PredictorFactory
    agreement_of: AgreementOf = lambda _info: None


class PaddedPredictor:
    """A predictor's runs, each text padded to the smallest of `lengths` that holds it."""

    def __init__(self, predictor: Predictor, lengths: Sequence[int]) -> None:
        self._predictor = predictor
        self._lengths = lengths

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        tokens = next(iter(inputs.values())).shape[1]
        more = next(length for length in self._lengths if length >= tokens) - tokens
        padded = {name: np.pad(array, ((0, 0), (0, more))) for name, array in inputs.items()}
        return self._predictor.run(padded, timeout=timeout)


def padded(predictor: Predictor, lengths: Sequence[int]) -> Predictor:
    """Within the block, only this predictor runs."""
    return cast(Predictor, PaddedPredictor(predictor, lengths))


def measure_u2netp(
    files: ModelFiles, backends: Backends, *, requests: int, cores: int, tick: Callable[[], None]
) -> ClaimTable:
    """Measure one 1×3×320×320 picture at a time, then with all cores busy. Raises BackendError."""
    groups = (
        _group("dygraph", "paddle_dygraph"),
        _group("jit", "paddle_jit"),
        _group("native", "paddle_inference", onednn=False),
        _group("onednn", "paddle_inference"),
        _bfloat16(files),
        *(int8 := int8_groups(files)),
    )
    selftest = files.selftest(backends.agreement_of(files.info()))
    samples: list[Sample] = [("self-test", selftest.inputs)]
    tuned_group = (_group("tuned", "paddle_dygraph"),)
    with (
        _opened(files, selftest, groups, backends.served) as (alone, refused),
        _opened(files, selftest, tuned_group, backends.tuned) as (tuned, _),
    ):
        runs = measure_single(alone | tuned, samples, requests=requests, tick=tick)
    times = {name: median(each.seconds) for name, each in runs.items()}
    busy = _busy(files, selftest, backends, samples, requests=requests, cores=cores, tick=tick)
    labels = {
        "dygraph": "dynamic graph",
        "tuned": "dynamic graph in a process with Paddlepool's allocator",
        "jit": "paddle.jit.load",
        "native": "Paddle Inference, oneDNN off",
        "onednn": "Paddle Inference + oneDNN (MKLDNN)",
        "bf16": "Paddle Inference + oneDNN in bfloat16",
        **{group.name: f"int8 program, {ENGINES[group.backend]}" for group in int8},
    }
    return ClaimTable(
        title="U²-Netp, 1×3×320×320",
        unit="seconds a picture (median; with all cores: wall time / pictures)",
        requests=requests,
        rows=(*_rows(labels, times, U2NETP_SECONDS), *_busy_rows(busy, cores, scale=1.0)),
        refused=refused,
    )


def measure_bert(
    files: ModelFiles, backends: Backends, *, requests: int, cores: int, tick: Callable[[], None]
) -> ClaimTable:
    """Measure texts one at a time, padded to the maximum and in buckets, then with all cores
    busy."""
    groups = (
        _group("dygraph", "paddle_dygraph"),
        _group("onnxruntime", "onnxruntime"),
        _group("onednn", "paddle_inference", cache_capacity=0),
        _bfloat16(files, cache_capacity=0),
        *(int8 := int8_groups(files)),
    )
    selftest = files.selftest(backends.agreement_of(files.info()))
    samples = _texts()
    warm_up = [samples[bisect_right(LENGTHS, bucket) - 1] for bucket in BUCKETS]
    lower = {group.name for group in int8}
    with _opened(files, selftest, groups, backends.served) as (alone, refused):
        variants = {
            name: padded(each, (PADDED,)) for name, each in alone.items() if name not in lower
        } | {
            f"{name}+buckets": padded(each, BUCKETS)
            for name, each in alone.items()
            if name != "dygraph"
        }
        runs = measure_single(variants, samples, requests=requests, warm_up=warm_up, tick=tick)
    times = {name: sum(each.seconds) for name, each in runs.items()}
    busy = _busy(
        files,
        selftest,
        backends,
        samples,
        requests=requests,
        cores=cores,
        tick=tick,
        buckets=BUCKETS,
    )
    labels = {
        "dygraph": f"dynamic graph, padded to {PADDED}",
        "onnxruntime": f"ONNX Runtime, padded to {PADDED}",
        "onednn": f"static graph (Paddle Inference + oneDNN), padded to {PADDED}",
        "bf16": f"static graph in bfloat16, padded to {PADDED}",
        "onnxruntime+buckets": "ONNX Runtime, in length buckets",
        "onednn+buckets": "static graph (Paddle Inference + oneDNN), in length buckets",
        "bf16+buckets": "static graph in bfloat16, in length buckets",
        **{
            f"{group.name}+buckets": f"int8 program, {ENGINES[group.backend]}, in length buckets"
            for group in int8
        },
    }
    published = {name: value * requests / BERT_REQUESTS for name, value in BERT_SECONDS.items()}
    return ClaimTable(
        title=f"BERT of bert-base's shape, {requests:,} single predictions",
        unit=f"seconds for all {requests:,} (published seconds scaled from {BERT_REQUESTS:,})",
        requests=requests,
        rows=(*_rows(labels, times, published), *_busy_rows(busy, cores, scale=requests)),
        refused=refused,
    )


def int8_groups(files: ModelFiles) -> tuple[InstanceGroup, ...]:
    """Groups of lower precision that `default_group = "auto"` may choose, on one core."""
    groups = files.config.instance_group
    return tuple(each for each in groups if each.program == INT8 and each.threads == 1)


def _busy(
    files: ModelFiles,
    selftest: SelfTest,
    backends: Backends,
    samples: Sequence[Sample],
    *,
    requests: int,
    cores: int,
    tick: Callable[[], None],
    buckets: Sequence[int] = (),
) -> dict[str, float]:
    """Wall seconds per request of the dynamic graph with all cores, and of one predictor per
    core."""
    dygraph = _group("dygraph", "paddle_dygraph", threads=cores)
    pool = tuple(
        _group(f"pool{number}", "paddle_inference", cache_capacity=0 if buckets else 1)
        for number in range(cores)
    )
    with (
        _opened(files, selftest, (dygraph,), backends.served) as (one, _),
        _opened(files, selftest, pool, backends.served) as (many, _),
    ):
        several = {"dygraph": [*one.values()], "pool": [*many.values()]}
        if buckets:
            lengths = {"dygraph": (PADDED,), "pool": buckets}
            several = {
                name: [padded(each, lengths[name]) for each in predictors]
                for name, predictors in several.items()
            }
        for predictors in several.values():
            for predictor in predictors:
                for _, inputs in samples[:: max(1, len(samples) // 4)]:
                    predictor.run(inputs, timeout=120.0)
        loads = measure_concurrent(several, samples, requests=requests, tick=tick)
    return {name: load.wall_seconds / len(load.seconds) for name, load in loads.items()}


def _busy_rows(busy: Mapping[str, float], cores: int, *, scale: float) -> Iterator[ClaimRow]:
    for name, label, threads in (
        ("dygraph", "all cores: dynamic graph", f"1 × {cores}"),
        ("pool", "all cores: Paddlepool's predictors (oneDNN), one thread each", f"{cores} × 1"),
    ):
        yield ClaimRow(
            label=label,
            threads=threads,
            seconds=busy[name] * scale,
            ratio=busy["dygraph"] / busy[name],
        )


def _rows(
    labels: Mapping[str, str], times: Mapping[str, float], published: Mapping[str, float]
) -> Iterator[ClaimRow]:
    """A row for each measured group; both variants of a group have its published figure."""
    for name, label in labels.items():
        if name in times:
            claimed = published.get(name.removesuffix("+buckets"))
            yield ClaimRow(
                label=label,
                threads="1",
                seconds=times[name],
                ratio=times["dygraph"] / times[name],
                published_seconds=claimed,
                published_ratio=None if claimed is None else published["dygraph"] / claimed,
            )


def _group(name: str, backend: str, *, threads: int = 1, **options: object) -> InstanceGroup:
    return InstanceGroup(name=name, backend=backend, threads=threads, options=options)


def _bfloat16(files: ModelFiles, **options: object) -> InstanceGroup:
    """Whether the outputs are within the budget of the model's own group of that precision."""
    own = (each for each in files.config.instance_group if each.options.get("bfloat16"))
    return InstanceGroup(
        name="bf16",
        backend="paddle_inference",
        budget=next((each.budget for each in own), None),
        options={"bfloat16": True, **options},
    )


def _texts() -> list[Sample]:
    random = np.random.default_rng(20)
    return [
        (
            f"{length} tokens",
            {
                "input_ids": random.integers(1000, 20000, (1, length)).astype(np.int64),
                "attention_mask": np.ones((1, length), np.int64),
            },
        )
        for length in LENGTHS
    ]


@contextmanager
def _opened(
    files: ModelFiles,
    selftest: SelfTest,
    groups: Sequence[InstanceGroup],
    open_predictor: PredictorFactory,
) -> Iterator[tuple[dict[str, Predictor], Mapping[str, str]]]:
    """Open one predictor of each group; only a group of lower precision may be rejected."""
    opened = open_groups(files, list(groups), open_predictor=open_predictor, selftest=selftest)
    try:
        for name, reason in opened.refused.items():
            if name != "bf16" and name not in {each.name for each in int8_groups(files)}:
                raise BackendError(f"{name} cannot be measured: {reason}")
        yield {name: several[0] for name, several in opened.predictors.items()}, opened.refused
    finally:
        opened.close()

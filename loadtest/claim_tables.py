"""Measure the two published tables of speed-ups again, with the same steps on this machine.

Ratios are to the dynamic graph of the same table and thread budget; published seconds come from
another machine. If there are fewer `requests` than published, the published seconds are scaled,
never the measured ones.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from statistics import median
from types import MappingProxyType
from typing import cast

import numpy as np

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.ports import Predictor
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends import BACKENDS
from paddlepool.engine.backends.process import BACKEND_ENVIRONMENT, TUNED_ALLOCATOR, ProcessBackend
from paddlepool.evidence.comparison.measure import (
    Sample,
    measure_concurrent,
    measure_single,
    open_groups,
)
from paddlepool.making.programs.derive import INT8
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.tasks.task import agreement_of

U2NETP_SECONDS = {"dygraph": 2.1827, "jit": 1.9110, "native": 1.8756, "onednn": 0.5750}
U2NETP_REQUESTS = 12
BERT_SECONDS = {"dygraph": 29.46, "onnxruntime": 10.87, "onednn": 7.70}
BERT_REQUESTS = 1000
PADDED = 128
"""The published padding of every text in tokens, which is also the served model's maximum."""
BUCKETS = (16, 24, 32, 48, 64, 96, PADDED)
LENGTHS = (7, 17, 19, 20, 22, 24, 26, 28, 31, 33, 36, 40, 44, 49, 55, 62, 72, 89, 114, 128)
"""Tokens of the texts: the 20 middles of equal shares of 40,374 posts (SMP2020-EWECT)."""
TUNED = "tuned_dygraph"
"""The backend `paddle_dygraph` in a process with Paddlepool's allocator."""
OPEN = ProcessBackend(
    nice=0,
    backends=BACKENDS | {TUNED: BACKENDS["paddle_dygraph"]},
    environments={**BACKEND_ENVIRONMENT, TUNED: TUNED_ALLOCATOR},
)
ALL_CORES = (
    "all cores: dynamic graph",
    "all cores: Paddlepool's predictors (oneDNN), one thread each",
)
ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """A row of a table; `seconds` are one picture's median, or the sum over all texts."""

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
    groups: dict[float, list[ClaimRow]] = {}
    for row in table.rows:
        if row.published_ratio not in (None, 1.0):
            groups.setdefault(row.published_ratio or 0.0, []).append(row)
    return {rows[-1].label: any(row.ahead for row in rows) for rows in groups.values()}


@dataclass(frozen=True, slots=True)
class Variant:
    """A row to measure: its group, whose texts are padded to the smallest of `lengths`, if any."""

    label: str
    group: InstanceGroup
    lengths: Sequence[int] = ()

    def of(self, predictor: Predictor) -> Predictor:
        padded = PaddedPredictor(predictor, self.lengths)
        return cast(Predictor, padded) if self.lengths else predictor


@dataclass(frozen=True, slots=True)
class PaddedPredictor:
    """A predictor's runs, each text padded to the smallest of `lengths` that holds it."""

    predictor: Predictor
    lengths: Sequence[int]

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        tokens = next(iter(inputs.values())).shape[1]
        more = next(length for length in self.lengths if length >= tokens) - tokens
        padded = {name: np.pad(array, ((0, 0), (0, more))) for name, array in inputs.items()}
        return self.predictor.run(padded, timeout=timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a table measures: `variants` one run at a time, then `busy` on all cores.

    `total` makes a row's figure from the seconds of its runs; `scale` from those of one request on
    busy cores.
    """

    title: str
    unit: str
    samples: Sequence[Sample]
    warm_up: Sequence[Sample] | None = None
    variants: Sequence[Variant]
    busy: Sequence[Variant]
    published: Mapping[str, float]
    total: Callable[[Sequence[float]], float]
    scale: int


def plan_u2netp(files: ModelFiles, *, cores: int) -> Plan:
    """One 1×3×320×320 picture at a time, then with all cores busy."""
    groups = {
        "dynamic graph": _group("dygraph", "paddle_dygraph"),
        "dynamic graph in a process with Paddlepool's allocator": _group("tuned", TUNED),
        "paddle.jit.load": _group("jit", "paddle_jit"),
        "Paddle Inference, oneDNN off": _group("native", "paddle_inference", onednn=False),
        "Paddle Inference + oneDNN (MKLDNN)": _group("onednn", "paddle_inference"),
        "Paddle Inference + oneDNN in bfloat16": _bfloat16(files),
        **_int8(files),
    }
    return Plan(
        title="U²-Netp, 1×3×320×320",
        unit="seconds a picture (median; with all cores: wall time / pictures)",
        samples=[("self-test", files.selftest().inputs)],
        variants=[Variant(label, group) for label, group in groups.items()],
        busy=[
            Variant(ALL_CORES[0], _group("dygraph", "paddle_dygraph", threads=cores)),
            Variant(ALL_CORES[1], _group("onednn", "paddle_inference")),
        ],
        published=U2NETP_SECONDS,
        total=median,
        scale=1,
    )


def plan_bert(files: ModelFiles, *, requests: int, cores: int) -> Plan:
    """Texts one at a time, padded to the maximum and in buckets, then with all cores busy."""
    onednn = _group("onednn", "paddle_inference", cache_capacity=0)
    static = {
        "ONNX Runtime": _group("onnxruntime", "onnxruntime"),
        "static graph (Paddle Inference + oneDNN)": onednn,
        "static graph in bfloat16": _bfloat16(files, cache_capacity=0),
    }
    padded = {"dynamic graph": _group("dygraph", "paddle_dygraph"), **static}
    in_buckets = {**static, **_int8(files)}
    samples = _texts()
    return Plan(
        title=f"BERT of bert-base's shape, {requests:,} single predictions",
        unit=f"seconds for all {requests:,} (published seconds scaled from {BERT_REQUESTS:,})",
        samples=samples,
        warm_up=[samples[bisect_right(LENGTHS, bucket) - 1] for bucket in BUCKETS],
        variants=[
            *(Variant(f"{name}, padded to {PADDED}", padded[name], (PADDED,)) for name in padded),
            *(
                Variant(f"{name}, in length buckets", in_buckets[name], BUCKETS)
                for name in in_buckets
            ),
        ],
        busy=[
            Variant(ALL_CORES[0], _group("dygraph", "paddle_dygraph", threads=cores), (PADDED,)),
            Variant(ALL_CORES[1], onednn, BUCKETS),
        ],
        published={name: value * requests / BERT_REQUESTS for name, value in BERT_SECONDS.items()},
        total=sum,
        scale=requests,
    )


def measured(
    plan: Plan, files: ModelFiles, *, requests: int, cores: int, tick: Callable[[], None]
) -> ClaimTable:
    """Measure a table. Raises BackendError."""
    with _opened(files, plan.variants) as (several, refused):
        alone = {label: predictors[0] for label, predictors in several.items()}
        runs = measure_single(
            alone, plan.samples, requests=requests, warm_up=plan.warm_up, tick=tick
        )
    with _opened(files, plan.busy, cores=cores) as (several, _):
        for predictor in chain.from_iterable(several.values()):
            for _, inputs in plan.samples[:: max(1, len(plan.samples) // 4)]:
                predictor.run(inputs, timeout=120.0)
        loads = measure_concurrent(several, plan.samples, requests=requests, tick=tick)
    totals = {label: plan.total(run.seconds) for label, run in runs.items()}
    walls = {
        label: plan.scale * load.wall_seconds / len(load.seconds) for label, load in loads.items()
    }
    return ClaimTable(
        title=plan.title,
        unit=plan.unit,
        requests=requests,
        rows=(
            *_rows(plan.variants, totals, plan.published),
            *_rows(plan.busy, walls, cores=cores),
        ),
        refused=refused,
    )


@contextmanager
def _opened(
    files: ModelFiles, variants: Sequence[Variant], *, cores: int = 1
) -> Iterator[tuple[dict[str, list[Predictor]], Mapping[str, str]]]:
    """Open as many predictors of each group as fit on the cores, by label.

    Only a group of lower precision may be rejected.
    """
    groups = {variant.group.name: variant.group for variant in variants}
    with ExitStack() as stack:
        opened, refused = open_groups(
            files,
            list(groups.values()),
            stack=stack,
            open_predictor=OPEN,
            selftest=files.selftest(agreement_of(files.info())),
            count=lambda group: cores // group.threads,
        )
        for name, reason in refused.items():
            if not (groups[name].program or "bfloat16" in groups[name].options):
                raise BackendError(f"{name} cannot be measured: {reason}")
        predictors = {
            variant.label: [variant.of(one) for one in opened[variant.group.name]]
            for variant in variants
            if variant.group.name not in refused
        }
        yield predictors, refused


def _int8(files: ModelFiles) -> dict[str, InstanceGroup]:
    """Groups of lower precision that `default_group = "auto"` may choose, on one core, by label."""
    return {
        f"int8 program, {ENGINES[group.backend]}": group
        for group in files.config.instance_group
        if group.program == INT8 and group.threads == 1
    }


def _rows(
    variants: Sequence[Variant],
    seconds: Mapping[str, float],
    published: Mapping[str, float] = MappingProxyType({}),
    *,
    cores: int | None = None,
) -> Iterator[ClaimRow]:
    """A row for each measured variant; all variants of a group have its published figure.

    Ratios are to the first variant. On all `cores`, a group has as many predictors as fit.
    """
    first = variants[0]
    for variant in variants:
        if variant.label in seconds:
            threads, claimed = variant.group.threads, published.get(variant.group.name)
            yield ClaimRow(
                label=variant.label,
                threads=str(threads) if cores is None else f"{cores // threads} × {threads}",
                seconds=seconds[variant.label],
                ratio=seconds[first.label] / seconds[variant.label],
                published_seconds=claimed,
                published_ratio=claimed and published[first.group.name] / claimed,
            )


def _group(name: str, backend: str, *, threads: int = 1, **options: object) -> InstanceGroup:
    return InstanceGroup(name=name, backend=backend, threads=threads, options=options)


def _bfloat16(files: ModelFiles, **options: object) -> InstanceGroup:
    """Return a bfloat16 group with the budget of the model's own group of that precision."""
    own = (group for group in files.config.instance_group if group.options.get("bfloat16"))
    return InstanceGroup(
        name="bf16",
        backend="paddle_inference",
        budget=next((group.budget for group in own), None),
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

"""Trial runs of a foreign program: record golden values, test whether rows are independent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.contracts.errors import DeadlineExceeded, ExportError, PaddlepoolError, WorkerCrashed
from app.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from app.contracts.tensors import Array, Tensors, TensorSpec
from app.models.repository.config import ModelConfig

RUN_SECONDS = 120.0
FREE_SIZES = (1, 8, 32, 64, 224)
"""Sizes for free axes, tried one after another."""

TOLERANCE = 1e-3
"""Share of the largest output, or of 1: ten times the difference of kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of the runs. `onednn` is the reason why oneDNN must not serve the program, if any.
    `independent` is None if the program has no rows."""

    inputs: Tensors
    outputs: Tensors
    specs: tuple[TensorSpec, ...]
    tolerance: float
    onednn: str
    independent: bool | None


class _Bench:
    """Runs one predictor configuration, and reopens it after a crash."""

    def __init__(self, spec: PredictorSpec, open_predictor: PredictorFactory) -> None:
        self._spec = spec
        self._open = open_predictor
        self._predictor: Predictor | None = None

    def open(self) -> Predictor:
        if self._predictor is None:
            self._predictor = self._open(self._spec)
        return self._predictor

    def run(self, inputs: Tensors) -> Tensors:
        predictor = self.open()
        try:
            return predictor.run(inputs, timeout=RUN_SECONDS)
        except (WorkerCrashed, DeadlineExceeded):
            self.close()
            raise

    def close(self) -> None:
        if self._predictor is not None:
            self._predictor.close()
            self._predictor = None


def run_trial(
    spec: PredictorSpec, *, config: ModelConfig, open_predictor: PredictorFactory
) -> Trial:
    """Run a program with random inputs from a fixed seed; integers are 0 or 1.

    Shapes come from the first [[warmup]] of `config`, if any. Raises ExportError if the program
    cannot be opened, accepts no shape, or returns an output that is not finite.
    """
    is_paddle = spec.format == "paddle"
    native = _Bench(replace(spec, options={"onednn": False}) if is_paddle else spec, open_predictor)
    onednn = _Bench(replace(spec, options={"onednn": True}), open_predictor) if is_paddle else None
    try:
        try:
            native.open()
        except PaddlepoolError as error:
            name = "Paddle" if is_paddle else spec.backend
            raise ExportError(f"{name} cannot open the program: {error.message}") from error
        shapes, one, golden = _first_accepted(native, spec.inputs, config)
        for name, array in golden.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ExportError(f"output {name} is not finite for random inputs")
        largest = max(
            (float(np.abs(a).max(initial=0)) for a in golden.values() if a.dtype.kind == "f"),
            default=0.0,
        )
        tolerance = TOLERANCE * max(1.0, largest)
        other = _filled(spec.inputs, shapes, seed=2)
        both = {name: np.concatenate([one[name], other[name]]) for name in one if one[name].ndim}
        independent: bool | None = None
        seen = [golden]
        if _batched(spec.inputs) and _batched(spec.outputs) and len(both) == len(one):
            independent, more = _rows_are_independent(native, other, both, golden)
            seen += more
        return Trial(
            inputs=one,
            outputs=golden,
            specs=tuple(_as_seen(output, seen) for output in spec.outputs),
            tolerance=tolerance,
            onednn=(
                _why_not_onednn(onednn, one, golden, tolerance) if onednn else "it runs no ONNX"
            ),
            independent=independent,
        )
    finally:
        native.close()
        if onednn is not None:
            onednn.close()


def _first_accepted(
    bench: _Bench, inputs: Sequence[TensorSpec], config: ModelConfig
) -> tuple[Mapping[str, tuple[int, ...]], Tensors, Tensors]:
    refusal: PaddlepoolError
    for shapes in _shapes(inputs, config):
        feeds = _filled(inputs, shapes, seed=1)
        try:
            return shapes, feeds, bench.run(feeds)
        except PaddlepoolError as error:
            refusal = error
    raise ExportError(
        f"the program runs on no shape tried ({refusal.message}); name one that it takes under "
        "[[warmup]] in config.toml"
    ) from refusal


def _shapes(
    inputs: Sequence[TensorSpec], config: ModelConfig
) -> Iterator[Mapping[str, tuple[int, ...]]]:
    if config.warmup:
        yield config.warmup[0].shapes
        return
    for free in FREE_SIZES:
        yield {
            spec.name: tuple(
                size if size > 0 else 1 if axis == 0 else free
                for axis, size in enumerate(spec.shape)
            )
            for spec in inputs
        }


def _filled(
    inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], *, seed: int
) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        spec.name: (
            random.random(shapes[spec.name])
            if spec.dtype.startswith("float")
            else random.integers(0, 2, shapes[spec.name])
        ).astype(spec.dtype)
        for spec in inputs
    }


def _batched(specs: Sequence[TensorSpec]) -> bool:
    return all(spec.shape[:1] == (-1,) for spec in specs)


def _rows_are_independent(
    bench: _Bench, other: Tensors, both: Tensors, golden: Tensors
) -> tuple[bool, list[Tensors]]:
    try:
        second, joined = bench.run(other), bench.run(both)
    except PaddlepoolError:
        return False, []
    # All lengths must be equal: an output may have a row per detection instead of per input row.
    lengths = {len(array) for array in (*both.values(), *joined.values())}
    alike = all(_is_concatenation(golden[name], second[name], joined[name]) for name in golden)
    return len(lengths) == 1 and alike, [second, joined]


def _is_concatenation(first: Array, second: Array, joined: Array) -> bool:
    if first.shape[1:] != second.shape[1:]:
        return False
    rows = np.concatenate([first, second])
    return rows.shape == joined.shape and np.allclose(rows, joined, rtol=1e-4, atol=1e-5)


def _as_seen(spec: TensorSpec, seen: Sequence[Tensors]) -> TensorSpec:
    """Correct a declared output by the arrays received: Paddle infers some shapes wrongly."""
    arrays = [tensors[spec.name] for tensors in seen]
    declared = spec.shape if len(spec.shape) == arrays[0].ndim else arrays[0].shape
    shape = tuple(
        size if size and all(array.shape[axis] == size for array in arrays) else -1
        for axis, size in enumerate(declared)
    )
    return TensorSpec(spec.name, arrays[0].dtype.name, shape)


def _why_not_onednn(bench: _Bench, inputs: Tensors, golden: Tensors, tolerance: float) -> str:
    try:
        found = bench.run(inputs)
    except PaddlepoolError as error:
        return error.message
    for name, expected in golden.items():
        if found[name].shape != expected.shape:
            return f"output {name} has another shape"
        worst = np.abs(found[name].astype(np.float64) - expected.astype(np.float64)).max(initial=0)
        if not worst <= tolerance:
            return f"output {name} differs by {worst:.3g}, limit {tolerance:.3g}"
    return ""

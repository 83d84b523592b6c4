"""Seals a program that was exported elsewhere: reads it, runs it on trial, writes its manifest.

The trial records golden values and tests whether rows are independent.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from app.contracts.errors import ExportError, PaddlepoolError
from app.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from app.contracts.tensors import DTYPES, Array, Tensors, TensorSpec
from app.making.export.publish import Origin, sha256_of, template, write_manifest
from app.making.export.read_program import read_specs
from app.models.repository.config import MODEL_NAME, ModelConfig, load_config
from app.models.repository.layout import VERSION
from app.models.repository.manifest import MANIFEST, ONNX_SUFFIX, PICKLED
from app.models.repository.selftest import SelfTest, write_selftest

RUN_SECONDS = 120.0
FREE_SIZES = (1, 8, 32, 64, 224)
"""Sizes of free axes, tried in this order."""

TOLERANCE = 1e-3
"""Allowed difference, as a share of the largest output or of 1, whichever is larger: ten times the
difference between two kernels that compute the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of run_trial().

    `onednn` is the reason why oneDNN must not serve the program; it is empty if oneDNN may.
    `independent` tells whether a row's outputs do not depend on the other rows of its batch; it is
    None if not every input and output has a first axis of free size.
    """

    inputs: Tensors
    outputs: Tensors
    specs: tuple[TensorSpec, ...]
    tolerance: float
    onednn: str
    independent: bool | None


def run_trial(
    spec: PredictorSpec, *, config: ModelConfig, open_predictor: PredictorFactory
) -> Trial:
    """Run a program with random inputs from a fixed seed; integers are 0 or 1.

    Shapes come from the first [[warmup]] of `config`, if any. Raises ExportError if the program
    cannot be opened, accepts no shape, or returns an output that is not finite.
    """
    is_paddle = spec.format == "paddle"
    native = replace(spec, options={"onednn": False}) if is_paddle else spec
    shapes, one, golden, predictor = _first_accepted(native, config, open_predictor)
    with closing(predictor):
        for name, array in golden.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ExportError(f"output {name} is not finite for random inputs")
        largest = max(
            (float(np.abs(a).max(initial=0)) for a in golden.values() if a.dtype.kind == "f"),
            default=0.0,
        )
        tolerance = TOLERANCE * max(1.0, largest)
        independent: bool | None = None
        seen = [golden]
        batched = all(each.shape[:1] == (-1,) for each in (*spec.inputs, *spec.outputs))
        if batched and all(array.ndim for array in one.values()):
            other = _filled(spec.inputs, shapes, seed=2)
            independent, more = _rows_are_independent(predictor, one, other, golden)
            seen += more
    onednn = "it runs no ONNX"
    if is_paddle:
        test = SelfTest(inputs=one, outputs=golden, tolerance=tolerance)
        onednn = ""
        try:
            test.opened(open_predictor, replace(spec, options={"onednn": True})).close()
        except PaddlepoolError as error:
            onednn = error.message
    return Trial(
        inputs=one,
        outputs=golden,
        specs=tuple(_as_seen(output, seen) for output in spec.outputs),
        tolerance=tolerance,
        onednn=onednn,
        independent=independent,
    )


def _first_accepted(
    spec: PredictorSpec, config: ModelConfig, open_predictor: PredictorFactory
) -> tuple[Mapping[str, tuple[int, ...]], Tensors, Tensors, Predictor]:
    """The first shapes that the program accepts, its inputs and outputs, and an open predictor."""
    tried: Sequence[Mapping[str, tuple[int, ...]]] = [
        {
            each.name: tuple(
                size if size > 0 else 1 if axis == 0 else free
                for axis, size in enumerate(each.shape)
            )
            for each in spec.inputs
        }
        for free in FREE_SIZES
    ]
    if config.warmup:
        tried = [config.warmup[0].shapes]
    refusal: PaddlepoolError
    for shapes in tried:
        try:
            predictor = open_predictor(spec)
        except PaddlepoolError as error:
            name = "Paddle" if spec.format == "paddle" else spec.backend
            raise ExportError(f"{name} cannot open the program: {error.message}") from error
        feeds = _filled(spec.inputs, shapes, seed=1)
        try:
            return shapes, feeds, predictor.run(feeds, timeout=RUN_SECONDS), predictor
        except PaddlepoolError as error:
            predictor.close()
            refusal = error
    raise ExportError(
        f"the program ran on none of the tried shapes ({refusal.message}); name one under "
        "[[warmup]] in config.toml"
    ) from refusal


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


def _rows_are_independent(
    predictor: Predictor, one: Tensors, other: Tensors, golden: Tensors
) -> tuple[bool, list[Tensors]]:
    both = {name: np.concatenate([one[name], other[name]]) for name in one}
    try:
        second, joined = (predictor.run(each, timeout=RUN_SECONDS) for each in (other, both))
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
    """Correct a declared output by the arrays of the trial: Paddle infers some shapes wrongly."""
    arrays = [tensors[spec.name] for tensors in seen]
    declared = spec.shape if len(spec.shape) == arrays[0].ndim else arrays[0].shape
    shape = tuple(
        size if size and all(array.shape[axis] == size for array in arrays) else -1
        for axis, size in enumerate(declared)
    )
    return TensorSpec(spec.name, arrays[0].dtype.name, shape)


PROGRAMS, PARAMS = (".json", ".pdmodel", ONNX_SUFFIX), ".pdiparams"


def seal(
    directory: Path, *, open_predictor: PredictorFactory, source: str = "", licence: str = ""
) -> tuple[tuple[TensorSpec, ...], Trial, str]:
    """Turn a directory `MODEL/VERSION` with a saved program into a version that can be served.

    Writes config.toml if there is none and the defaults do not fit, then selftest.npz. Writes
    manifest.json last, because it makes the version visible to servers. Raises ExportError before
    it writes a file if the program cannot be served. Returns the inputs, the results of the trial,
    and the text written to config.toml, if any.
    """
    program, params = _program_of(directory)
    config_file = directory.parent / "config.toml"
    config = load_config(config_file)
    is_onnx = program.endswith(ONNX_SUFFIX)
    if is_onnx:
        inputs, outputs = read_onnx_specs(directory / program)
    else:
        inputs, outputs = read_specs(directory, program, params)
    _check(inputs, outputs, runner="ONNX Runtime" if is_onnx else "Paddle Inference")
    spec = PredictorSpec(
        directory=directory,
        program=program,
        params=params,
        inputs=inputs,
        outputs=outputs,
        backend="onnxruntime" if is_onnx else "paddle_inference",
        threads=1,
        format="onnx" if is_onnx else "paddle",
    )
    trial = run_trial(spec, config=config, open_predictor=open_predictor)
    written = "" if config_file.exists() else _config_text(trial, is_onnx=is_onnx)
    if written:
        config_file.write_text(written, "utf-8")
    write_selftest(directory, trial.inputs, trial.outputs, tolerance=trial.tolerance)
    write_manifest(
        directory,
        program=program,
        params=params,
        network=None,
        inputs=inputs,
        outputs=trial.specs,
        origin=Origin("foreign", source=source, licence=licence),
        weights_sha256=sha256_of(directory / (params or program)),
    )
    return inputs, trial, written


def _program_of(directory: Path) -> tuple[str, str | None]:
    """The only program of a version directory, and its parameters. Raises ExportError."""
    where = f"{directory.parent.name}/{directory.name}"
    if not (
        directory.is_dir()
        and VERSION.fullmatch(directory.name)
        and MODEL_NAME.fullmatch(directory.parent.name)
    ):
        raise ExportError(
            f"{where} must be a directory MODEL/VERSION: a name of {MODEL_NAME.pattern} and a "
            "whole number from 1"
        )
    if (directory / MANIFEST).exists():
        raise ExportError(f"{where} is sealed already; remove {MANIFEST} to seal it again")
    programs = [path for path in sorted(directory.iterdir()) if path.suffix in PROGRAMS]
    found = [path for path in programs if path.with_suffix(PARAMS).is_file()]
    found = found or [path for path in programs if _is_program(path)]
    if len(found) != 1:
        raise ExportError(
            f"{where} must hold one program: NAME.json or NAME.pdmodel with NAME{PARAMS}, or "
            f"NAME{ONNX_SUFFIX}; "
            f"found {len(found)}: {', '.join(path.name for path in found) or 'none'}"
        )
    if pickled := [path.name for path in directory.iterdir() if path.name.endswith(PICKLED)]:
        raise ExportError(f"{where}: {pickled[0]} is a pickle, which no server needs: remove it")
    params = found[0].with_suffix(PARAMS)
    # Paddle saves no such file for a program without parameters.
    return found[0].name, params.name if params.is_file() else None


def _is_program(path: Path) -> bool:
    """Whether the file is a program; a .json file may also be a tokenizer, for example."""
    if path.suffix != ".json":
        return path.is_file()
    try:
        content = json.loads(path.read_bytes())
        return isinstance(content, dict) and content["base_code"]["magic"] == "pir"
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _check(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, runner: str) -> None:
    """Check the declared dtypes: Paddle returns bfloat16 as float32 with wrong values."""
    if not (inputs and outputs):
        raise ExportError(
            f"the program has {len(inputs)} inputs and {len(outputs)} outputs, needed is at least "
            "one of each"
        )
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if spec.dtype not in DTYPES:
                raise ExportError(
                    f"{kind} {spec.name} is {spec.dtype}, which {runner} cannot "
                    f"pass through; served are {', '.join(DTYPES)}: cast it in the model"
                )


def _config_text(trial: Trial, *, is_onnx: bool) -> str:
    """The text of config.toml; empty if the defaults fit."""
    batching = ""
    if trial.independent is not None:
        batching = template("batched" if trial.independent else "unbatched")
    if is_onnx:
        return template("sealed_onnx", batching=batching)
    if trial.onednn:
        return template("sealed_paddle", doubt=f"oneDNN: {trial.onednn}.", batching=batching)
    return batching


def read_onnx_specs(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs under their own names, with -1 for free and symbolic sizes.

    Raises ExportError if the file is no ONNX graph, or if its weights are in other files.
    """
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (DecodeError, OSError) as error:
        raise ExportError(f"{path.name} is not an ONNX model") from error
    outside = [each.name for each in graph.initializer if each.external_data]
    if outside:
        raise ExportError(
            f"{path.name} keeps {len(outside)} weights in other files; save it as one file"
        )
    constants = {each.name for each in graph.initializer}
    inputs = tuple(_spec(each) for each in graph.input if each.name not in constants)
    return inputs, tuple(_spec(each) for each in graph.output)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.elem_type:
        raise ExportError(f"{value.name} is no tensor of a known type")
    if kind.elem_type == onnx.TensorProto.BFLOAT16:
        dtype = "bfloat16"
    else:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape = tuple(
        size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else -1
        for size in kind.shape.dim
    )
    return TensorSpec(value.name, dtype, shape)

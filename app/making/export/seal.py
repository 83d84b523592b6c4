"""Seals a program that was exported elsewhere: reads it, runs it on trial, writes its manifest.

The trial records golden values, tests whether rows are independent, and tests instance groups.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from app.contracts.errors import ExportError
from app.contracts.ports import PredictorFactory, PredictorSpec
from app.contracts.tensors import DTYPES, TensorSpec
from app.making.export.publish import Origin, sha256_of, write_manifest
from app.making.export.read_program import read_specs
from app.making.export.sealed_groups import (
    GroupOnTrial,
    check_configured,
    check_usual,
    config_text,
)
from app.making.export.trial import Trial, run_trial
from app.making.export.trial_inputs import parse_shapes
from app.models.repository.config import MODEL_NAME, load_config
from app.models.repository.inputs import read_input
from app.models.repository.layout import VERSION
from app.models.repository.manifest import MANIFEST, ONNX_SUFFIX, PICKLED
from app.models.repository.selftest import write_selftest

PROGRAMS, PARAMS = (".json", ".pdmodel", ONNX_SUFFIX), ".pdiparams"


def seal(
    directory: Path,
    *,
    open_predictor: PredictorFactory,
    given: Sequence[Path] = (),
    shapes: Sequence[Sequence[str]] = (),
    source: str = "",
    licence: str = "",
) -> tuple[tuple[TensorSpec, ...], Trial, tuple[GroupOnTrial, ...], str]:
    """Turn a directory `MODEL/VERSION` with a saved program into a version that can be served.

    `given` are .npz files with real inputs, `shapes` lists `NAME=SIZE,…` of each input; see
    run_trial(). Writes config.toml if there is none, then selftest.npz. Writes manifest.json last,
    because it makes the version visible to servers. Returns the inputs, the results of the trial,
    each instance group's, and the text written to config.toml, if any.

    Raises ExportError before it writes a file if the program cannot be served or the default group
    of config.toml gives wrong results, and ConfigError for unfit `given`, `shapes` or [[warmup]].
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
    trial = run_trial(
        spec,
        config=config,
        open_predictor=open_predictor,
        given=[read_input(path, inputs) for path in given],
        shapes=[parse_shapes(each) for each in shapes],
    )
    spec = replace(spec, outputs=trial.specs)
    if config_file.exists():
        groups = check_configured(spec, config, trial.selftest, open_predictor)
        written = ""
    else:
        groups = check_usual(spec, trial.selftest, open_predictor)
        written = config_text(trial, groups, real=bool(given))
        config_file.write_text(written, "utf-8")
    test = trial.selftest
    write_selftest(
        directory,
        test.inputs,
        test.outputs,
        tolerance=test.tolerance,
        more=test.more,
        relative=test.relative,
    )
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
    return inputs, trial, groups, written


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

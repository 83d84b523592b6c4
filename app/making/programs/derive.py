"""Makes a version's int8 program without calibration data, checks it and publishes it."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from numpy.typing import NDArray

from app.contracts.errors import ConfigError, ExportError
from app.contracts.ports import Agreement, PredictorFactory, PredictorSpec
from app.contracts.tensors import Array, Tensors, absolute_differences
from app.engine.backends.handler import onnx_bytes
from app.engine.backends.openvino import imported_openvino
from app.making.export.publish import (
    next_version,
    replace_manifest,
    sha256_of,
    staged_version,
    versions_of,
)
from app.making.programs.onnx_graph import Graph, simplified
from app.making.programs.qdq import ShippedRanges, quantised, shipped_ranges
from app.making.programs.smoothing import quantise_embeddings, smooth
from app.models.repository.config import InstanceGroup
from app.models.repository.files import staging_name, write_synced
from app.models.repository.layout import ModelFiles
from app.models.repository.manifest import (
    MANIFEST,
    Derivation,
    DerivedProgram,
    MeasuredLoss,
    read_manifest,
)

INT8 = "int8"
FILE = "int8.onnx"
OPSET = 13
DYNAMIC = ("bert",)
"""Networks whose activations are quantised at run time; they need no ranges."""
TOOL = "quant_pre_process and quantize_dynamic of ONNX Runtime"
TOOLS = ("onnxruntime", "paddle2onnx")
SETTINGS: dict[str, str | int | float | bool] = {
    "per_channel": True,
    "reduce_range": True,
    "weight_type": "QInt8",
    "embeddings": "a scale for each row",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A program that is not published yet; `backend` is the one it was made for."""

    content: bytes
    entry: DerivedProgram
    backend: str


def missing_packages() -> tuple[str, ...]:
    wanted = ("onnxruntime", "openvino", "paddle2onnx")
    return tuple(name for name in wanted if find_spec(name) is None)


def named_graph(files: ModelFiles) -> onnx.ModelProto:
    """The reference program as a simplified ONNX graph of OPSET or later.

    Raises BackendError or ExportError if it cannot be converted.
    """
    reference = files.manifest.reference
    opening = {
        "directory": str(files.directory),
        "program": reference.program,
        "params": reference.params,
        "format": reference.format,
    }
    return simplified(
        _of_opset(onnx.load_from_string(onnx_bytes(opening))),
        inputs=[spec.name for spec in files.manifest.inputs],
        outputs=[spec.name for spec in files.manifest.outputs],
    )


def _of_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a model to OPSET if its version of ONNX's own operators is older."""
    own = max((each.version for each in model.opset_import if not each.domain), default=OPSET)
    if own >= OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # its errors have no common base class
        raise ExportError(
            f"the program has opset {own}, quantising needs {OPSET}, and ONNX cannot convert it"
        ) from error


def derive_int8(files: ModelFiles) -> Derived | None:
    """The version's int8 program, or None if it needs calibration data.

    Raises BackendError if the reference cannot be converted, and ExportError if the ranges that
    come with the package belong to another graph.
    """
    network: Mapping[str, Any] = files.manifest.network or {}
    shipped = shipped_ranges(str(files.manifest.weights.get("sha256")))
    if shipped is not None and shipped.ranges is not None and network:
        # A sealed program (without `network`) has other layer names than the ranges.
        content = quantised(named_graph(files), shipped.ranges).SerializeToString()
        return _derived(content, "openvino", shipped)
    return dynamic(files, shipped) if network.get("name") in DYNAMIC else None


def _derived(content: bytes, backend: str, shipped: ShippedRanges | None) -> Derived:
    entry = DerivedProgram(
        name=INT8,
        format="onnx",
        program=FILE,
        derivation=shipped.derivation
        if shipped is not None
        else Derivation(tool=TOOL, versions=versions_of(TOOLS), settings=SETTINGS),
        calibration=shipped.calibration if shipped is not None else None,
        quality=shipped.quality if shipped is not None else (),
    )
    return Derived(content=content, entry=entry, backend=backend)


def folded(files: ModelFiles) -> Graph:
    """The version's named graph after ONNX Runtime has computed its constants."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as scratch:
        plain, prepared = Path(scratch) / "plain.onnx", Path(scratch) / "prepared.onnx"
        onnx.save(named_graph(files), plain)
        try:
            # Symbolic shapes would need sympy and add nothing for a transformer.
            quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        except Exception as error:  # its errors have no common base class
            raise ExportError(f"ONNX Runtime cannot prepare the program: {error}") from error
        return Graph(onnx.load(prepared))


def dynamic(files: ModelFiles, shipped: ShippedRanges | None) -> Derived:
    """Quantise with ONNX Runtime: weights for each channel, activations at every run.

    With shipped factors, activations are smoothed first.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = folded(files)
    floats: list[str] = []
    if shipped is not None:
        smooth(graph, shipped.exponents)
        floats += shipped.derivation.float_layers
    floats += quantise_embeddings(graph)
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch) / FILE
        try:
            quantize_dynamic(
                graph.model(),
                small,
                nodes_to_exclude=floats,
                per_channel=True,
                # Weights have seven bits: a processor without VNNI adds pairs of products in
                # 16 bits, which saturate if both factors have eight bits.
                reduce_range=True,
                weight_type=QuantType.QInt8,
            )
        except Exception as error:  # its errors have no common base class
            raise ExportError(f"ONNX Runtime cannot quantise the program: {error}") from error
        content = small.read_bytes()
    return _derived(content, "onnxruntime", shipped)


def add_program(directory: Path, derived: Derived) -> None:
    """Publish `derived` in a version; it replaces a program of the same name.

    The program and the manifest are written next to the version's directory and renamed into it,
    the manifest last. A server that reads the version between the two renames finds an unlisted
    file, and reads the version again later. After a power failure between the two renames,
    remove_unlisted() repairs the version.
    """
    manifest = read_manifest(directory)
    text = json.loads((directory / MANIFEST).read_text("utf-8"))
    entry = derived.entry
    others = [each for each in manifest.programs if each.name != entry.name]
    text["format"] = 2
    text["programs"] = [asdict(each) for each in (*others, entry)]
    with staging_name(directory.parent) as program:
        write_synced(program, [derived.content])
        text["files"][entry.program] = {
            "bytes": len(derived.content),
            "sha256": sha256_of(program),
        }
        program.rename(directory / entry.program)
    replace_manifest(directory, text)


def publish_with(directory: Path, derived: Derived) -> Path:
    """Publish a new version: a copy of this one with `derived` added. Raises ExportError."""
    model = directory.parent
    number = next_version(model)
    with staged_version(model, number) as staged:
        for name in (*read_manifest(directory).files, MANIFEST):
            shutil.copy(directory / name, staged / name)
        add_program(staged, derived)
    return model / str(number)


def remove_unlisted(directory: Path, name: str) -> None:
    """Remove a program that an interrupted add_program() did not list."""
    if name not in read_manifest(directory).files:
        (directory / name).unlink(missing_ok=True)


RUN_SECONDS = 120.0
LARGEST_DRIFT = 0.02
"""Limit of drift(), on average over the samples."""


def checked(
    derived: Derived,
    files: ModelFiles,
    samples: Sequence[Tensors],
    *,
    agreement: Agreement | None,
    least_agreement: float = 0.0,
    open_predictor: PredictorFactory,
) -> Derived:
    """Measure the loss of `derived` on `samples`; return a copy with the loss in its quality.

    `agreement` is the measure of the model's task, `least_agreement` its limit. Raises ExportError
    if the loss is too large: shipped ranges were measured on another machine, and this one may
    compute int8 differently.
    """
    reference = files.spec(next(g for g in files.config.instance_group if g.program is None))
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / derived.entry.program).write_bytes(derived.content)
        small = replace(
            files.spec(InstanceGroup(name="checked", backend=derived.backend)),
            directory=Path(scratch),
            program=derived.entry.program,
            params=None,
            program_name=derived.entry.name,
            format=derived.entry.format,
        )
        expected, found = (_outputs(spec, samples, open_predictor) for spec in (reference, small))
    pairs = list(zip(found, expected, strict=True))
    drifts = [max(drift(ours[name], theirs[name]) for name in theirs) for ours, theirs in pairs]
    figures = {"mean difference": round(float(np.mean(drifts)), 5)}
    fit = figures["mean difference"] <= LARGEST_DRIFT
    if agreement is not None:
        both = [agreement(ours, theirs) for ours, theirs in pairs]
        figures["agreement"] = round(float(np.mean(both)), 5)
        fit = fit and figures["agreement"] >= least_agreement
    if not fit:
        said = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        raise ExportError(
            f"{files.name}: the program {derived.entry.name} is not accurate enough: {said} on "
            f"{len(samples)} samples (limits {LARGEST_DRIFT}, {least_agreement})"
        )
    loss = MeasuredLoss(data="samples on this machine", count=len(samples), figures=figures)
    return replace(derived, entry=replace(derived.entry, quality=(*derived.entry.quality, loss)))


def _outputs(
    spec: PredictorSpec, samples: Sequence[Tensors], open_predictor: PredictorFactory
) -> list[Tensors]:
    with closing(open_predictor(spec)) as predictor:
        return [predictor.run(sample, timeout=RUN_SECONDS) for sample in samples]


class Differences:
    """Measures programs against the reference's outputs on some samples."""

    def __init__(self, reference: onnx.ModelProto, samples: Sequence[Tensors]) -> None:
        self._samples = samples
        self._expected = _run(reference, samples)

    def __call__(self, model: onnx.ModelProto) -> float:
        """The mean of drift() over samples and outputs."""
        found = _run(model, self._samples)
        gaps = [
            drift(a, b)
            for ours, theirs in zip(found, self._expected, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        ]
        return float(np.mean(gaps))


def _run(model: onnx.ModelProto, samples: Sequence[Tensors]) -> list[list[NDArray[np.float64]]]:
    """Run a model with OpenVINO, which computes int8 here exactly as it does when serving."""
    try:
        openvino = imported_openvino()
    except ImportError as error:
        raise ConfigError("quantising needs the package openvino (extra engines)") from error
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False},
    )
    request = compiled.create_infer_request()
    return [
        [np.array(value, np.float64) for value in request.infer(dict(sample)).values()]
        for sample in samples
    ]


def drift(found: Array, expected: Array) -> float:
    """The mean absolute difference as a share of the largest expected value.

    If the largest expected value is below 1, the share is of 1.
    """
    if not expected.size:
        return 0.0
    largest = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
    return float(absolute_differences(found, expected).mean()) / largest

"""Makes a version's int8 program without calibration data, checks it and publishes it."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter

from paddlepool.contracts.errors import ConfigError, ExportError
from paddlepool.contracts.ports import Agreement, PredictorFactory
from paddlepool.contracts.tensors import Array, Tensors, absolute_differences
from paddlepool.engine.backends.handler import onnx_bytes
from paddlepool.engine.backends.onnx import imported_openvino
from paddlepool.making.export import publish
from paddlepool.making.programs.affine import fold_affine
from paddlepool.making.programs.onnx_graph import Graph, simplified
from paddlepool.making.programs.padded_classes import pad_classes
from paddlepool.making.programs.qdq import PAIR_LEVELS, quantised
from paddlepool.making.programs.rewrite import rewritten
from paddlepool.making.programs.shipped import shipped_ranges
from paddlepool.making.programs.transformer import (
    measured_ranges,
    quantise_embeddings,
    quantise_products,
    random_tokens,
)
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.files import staging_name, sync_directory, write_synced
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.manifest import (
    MANIFEST,
    Derivation,
    DerivedProgram,
    MeasuredLoss,
    read_manifest,
)
from paddlepool.models.repository.selftest import RUN_SECONDS

INT8 = "int8"
FILE = "int8.onnx"
OPSET = 13
TRANSFORMERS = ("bert",)
"""Names of networks whose int8 programs need no data: ranges are measured on random tokens, and the
rows of other activations get their own scale at every run."""
IDS = "input_ids"
TOOL = "quant_pre_process of ONNX Runtime, ranges of random tokens, quantised by Paddlepool"
OLD_TOOLS = (
    "quant_pre_process and quantize_dynamic of ONNX Runtime",
    "quant_pre_process of ONNX Runtime, quantised by Paddlepool",
    "NNCF's ranges, put in by Paddlepool",
    "NNCF's ranges, put into a rewritten graph",
)
"""The tools of programs that are made otherwise now. In programs of the first, a text's scores also
depend on the other texts of the batch; the others take 1.15, 1.4 and 1.2 times the time."""
TOOLS = ("onnxruntime", "paddle2onnx")
SETTINGS: dict[str, str | int | float | bool] = {
    "activations": "one scale, or a scale for each row",
    "embeddings": "a scale for each row",
    "per_channel": True,
    "pair_levels": PAIR_LEVELS,
}
LARGE = 2**14
"""A product with fewer weights than this stays float: int8 would save no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A program that is not published yet; `backend` names the backend it was made for."""

    content: bytes
    entry: DerivedProgram
    backend: str


def missing_packages() -> list[str]:
    return [name for name in ("onnxruntime", "openvino", "paddle2onnx") if find_spec(name) is None]


def named_graph(files: ModelFiles) -> onnx.ModelProto:
    """Return a version's reference program as a simplified() ONNX graph of OPSET or later.

    Raises BackendError or ExportError if it cannot be converted, and OSError if it cannot be read.
    """
    reference = files.manifest.reference
    opening = {
        "directory": str(files.directory),
        "program": reference.program,
        "params": reference.params,
        "format": reference.format,
    }
    model = onnx.load_from_string(onnx_bytes(opening))
    own = max((opset.version for opset in model.opset_import if not opset.domain), default=OPSET)
    if own < OPSET:
        try:
            model = onnx.version_converter.convert_version(model, OPSET)
        except Exception as error:  # its errors have no common base class
            raise ExportError(
                f"the program has opset {own}, quantising needs {OPSET}, and ONNX cannot convert it"
            ) from error
    return simplified(
        model,
        inputs=[spec.name for spec in files.manifest.inputs],
        outputs=[spec.name for spec in files.manifest.outputs],
    )


def derive_int8(files: ModelFiles) -> Derived | None:
    """Return the version's int8 program, or None if making it needs calibration data.

    It needs none for TRANSFORMERS, and for a network whose weights have shipped_ranges(). Raises
    the errors of folded(), and ExportError if the shipped ranges belong to another graph.
    """
    network: Mapping[str, Any] = files.manifest.network or {}
    if network.get("name") in TRANSFORMERS:
        return transformer(files)
    shipped = shipped_ranges(str(files.manifest.weights.get("sha256")))
    if shipped is None or shipped.sealed == bool(network):
        return None  # without `network`, the layers have the names of a sealed program
    entry = DerivedProgram(
        name=INT8,
        format="onnx",
        program=FILE,
        derivation=shipped.derivation,
        calibration=shipped.calibration,
        quality=shipped.quality,
    )
    graph = named_graph(files)
    if shipped.sealed:
        model = pad_classes(fold_affine(graph))
    else:
        model = rewritten(graph, approximate=True).model
    content = quantised(model, shipped.ranges).SerializeToString()
    return Derived(content=content, entry=entry, backend="openvino")


def folded(files: ModelFiles) -> Graph:
    """Return the version's named_graph() after ONNX Runtime has folded its constants.

    Raises the errors of named_graph(), and ExportError if ONNX Runtime cannot do this.
    """
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


def transformer(files: ModelFiles) -> Derived:
    """Return a transformer's int8 program: its embeddings and large matrix products are quantised.

    Raises as folded() does.
    """
    graph = folded(files)
    products = [
        node
        for node, weight in graph.layers()
        if node.op_type == "MatMul"
        and node.input[1] == weight
        and graph.constants[weight].ndim == 2
        and graph.constants[weight].size >= LARGE
    ]
    floats = tuple(node.name for node, _ in graph.layers() if node not in products)
    sizes = (files.manifest.network or {})["options"]
    tokens = random_tokens(sizes["vocab_size"], sizes["max_position_embeddings"])
    feed = {spec.name: np.ones_like(tokens) for spec in files.manifest.inputs} | {IDS: tokens}
    inputs = list(dict.fromkeys(node.input[0] for node in products))
    ranges = measured_ranges(graph.model(), inputs, feed)
    quantise_embeddings(graph)
    quantise_products(graph, products, ranges)
    derivation = Derivation(
        tool=TOOL, versions=publish.versions_of(TOOLS), settings=SETTINGS, float_layers=floats
    )
    entry = DerivedProgram(name=INT8, format="onnx", program=FILE, derivation=derivation)
    return Derived(content=graph.model().SerializeToString(), entry=entry, backend="onnxruntime")


def add_program(directory: Path, derived: Derived) -> None:
    """Publish `derived` in a version; it replaces a program of the same name.

    The program and the manifest are written next to the version's directory and renamed into it,
    the manifest last. A program to be replaced is first removed from the manifest. A server that
    reads the version between two renames finds a file that the manifest does not list, and reads
    the version again later. After a power failure, remove_unlisted() repairs the version. Raises
    ManifestError and OSError.
    """
    manifest = read_manifest(directory)
    text = json.loads((directory / MANIFEST).read_text("utf-8"))
    entry = derived.entry
    others = [program for program in manifest.programs if program.name != entry.name]
    text["format"] = 2
    text["programs"] = [asdict(program) for program in others]
    with staging_name(directory.parent) as program:
        write_synced(program, [derived.content])
        digest = publish.sha256_of(program)
        if text["files"].pop(entry.program, None):
            publish.replace_manifest(directory, text)
        program.rename(directory / entry.program)
    sync_directory(directory)
    text["programs"].append(asdict(entry))
    text["files"][entry.program] = {"bytes": len(derived.content), "sha256": digest}
    publish.replace_manifest(directory, text)


def publish_with(directory: Path, derived: Derived) -> Path:
    """Publish a copy of a version, with `derived` added, as the model's next version.

    Files that the manifest does not list are not copied. Returns the directory of the new version.
    Raises the errors of staged_version() and add_program().
    """
    model = directory.parent
    number = publish.next_version(model)
    with publish.staged_version(model, number) as staged:
        for name in (*read_manifest(directory).files, MANIFEST):
            shutil.copy(directory / name, staged / name)
        add_program(staged, derived)
    return model / str(number)


def remove_unlisted(directory: Path, name: str) -> None:
    """Remove the file `name` of an interrupted add_program(), unless the manifest lists it."""
    if name not in read_manifest(directory).files:
        (directory / name).unlink(missing_ok=True)


LARGEST_DRIFT = 0.02
"""Maximum drift() of a derived program, on average over the samples."""


def checked(
    derived: Derived,
    files: ModelFiles,
    samples: Sequence[Tensors],
    *,
    agreement: Agreement | None,
    least_agreement: float = 0.0,
    open_predictor: PredictorFactory,
) -> Derived:
    """Measure the loss of `derived` on `samples`; return a copy with it added to `entry.quality`.

    `agreement` is the measure of the model's task. Raises ExportError if, on average, the drift()
    is above LARGEST_DRIFT or the agreement below `least_agreement`: shipped ranges were measured on
    another machine, and this one may compute int8 differently. Whole numbers have no drift if there
    is an agreement, which judges them. Also raises the errors of opening and running a predictor.
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
        outputs = []
        for spec in (reference, small):
            with closing(open_predictor(spec)) as predictor:
                outputs.append([predictor.run(sample, timeout=RUN_SECONDS) for sample in samples])
    expected, results = outputs
    pairs = list(zip(results, expected, strict=True))
    drifts = [
        max(
            drift(output[name], array)
            for name, array in base.items()
            if agreement is None or array.dtype.kind == "f"
        )
        for output, base in pairs
    ]
    figures = {"mean difference": round(float(np.mean(drifts)), 5)}
    fit = figures["mean difference"] <= LARGEST_DRIFT
    if agreement is not None:
        both = [agreement(*pair) for pair in pairs]
        figures["agreement"] = round(float(np.mean(both)), 5)
        fit = fit and figures["agreement"] >= least_agreement
    if not fit:
        losses = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        raise ExportError(
            f"{files.name}: the program {derived.entry.name} is not accurate enough: {losses} on "
            f"{len(samples)} samples (limits {LARGEST_DRIFT}, {least_agreement})"
        )
    loss = MeasuredLoss(data="samples on this machine", count=len(samples), figures=figures)
    return replace(derived, entry=replace(derived.entry, quality=(*derived.entry.quality, loss)))


def differences(
    reference: onnx.ModelProto, samples: Sequence[Tensors]
) -> Callable[[onnx.ModelProto], float]:
    """Return a function that measures a program's mean drift() from `reference` on the samples.

    Raises ConfigError if OpenVINO is not installed.
    """
    expected = _outputs_of(reference, samples)

    def measure(model: onnx.ModelProto) -> float:
        pairs = zip(_outputs_of(model, samples), expected, strict=True)
        return float(np.mean([drift(*pair) for pair in pairs]))

    return measure


def _outputs_of(model: onnx.ModelProto, samples: Sequence[Tensors]) -> list[Array]:
    """Run a model on each sample with OpenVINO, as the server does; return all outputs in one list.

    Raises ConfigError if OpenVINO is not installed.
    """
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
    return [np.array(value) for sample in samples for value in request.infer(dict(sample)).values()]


def drift(output: Array, expected: Array) -> float:
    """Return how far an output is from the expected one.

    This is the mean absolute difference, divided by the largest absolute expected value or by 1,
    whichever is larger. Of whole numbers it is the share that differs, because classes have no
    distance. Returns 0 for an empty output.
    """
    if not expected.size:
        return 0.0
    if expected.dtype.kind != "f":
        return float((output != expected).mean())
    largest = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
    return float(absolute_differences(output, expected).mean()) / largest

"""Makes a version's int8 program without data, and adds it with its entry to the version."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter

from app.contracts.errors import ExportError
from app.engine.backends.handler import onnx_bytes
from app.making.export.publish import (
    next_version,
    replace_manifest,
    sha256_of,
    staged_version,
    write_synced,
)
from app.making.programs.onnx_graph import simplified
from app.making.programs.qdq import quantised, shipped_ranges
from app.models.repository.layout import ModelFiles
from app.models.repository.manifest import MANIFEST, Derivation, DerivedProgram, read_manifest

INT8 = "int8"
FILE = "int8.onnx"
OPSET = 13
DYNAMIC = ("bert",)
"""Networks whose activations are quantised at run time; they need no ranges."""


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
    """Convert an older model; only ONNX's own operators matter here."""
    own = max((each.version for each in model.opset_import if not each.domain), default=OPSET)
    if own >= OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # its errors have no common base class
        raise ExportError(
            f"the program has opset {own}, quantising needs {OPSET}, and ONNX cannot convert it",
            limit=OPSET,
            received=own,
        ) from error


def derive_int8(files: ModelFiles) -> Derived | None:
    """The version's int8 program, or None if it needs calibration data.

    Raises BackendError if the reference cannot be converted, and ExportError if the ranges that
    come with the package belong to another graph.
    """
    network: Mapping[str, Any] = files.manifest.network or {}
    shipped = shipped_ranges(str(files.manifest.weights.get("sha256")))
    if shipped is not None and network:  # a sealed file has other layer names
        return Derived(
            backend="openvino",
            content=quantised(named_graph(files), shipped.ranges).SerializeToString(),
            entry=DerivedProgram(
                name=INT8,
                format="onnx",
                program=FILE,
                derivation=shipped.derivation,
                calibration=shipped.calibration,
                quality=shipped.quality,
            ),
        )
    return _dynamic(files) if network.get("name") in DYNAMIC else None


def _dynamic(files: ModelFiles) -> Derived:
    """Quantise with ONNX Runtime: weights for each channel, activations at every run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as scratch:
        plain, prepared, small = (Path(scratch) / f"{name}.onnx" for name in ("a", "b", "c"))
        onnx.save(named_graph(files), plain)
        try:
            # Symbolic shapes would need sympy and add nothing for a transformer.
            quant_pre_process(plain, prepared, skip_symbolic_shape=True)
            quantize_dynamic(
                prepared,
                small,
                per_channel=True,
                # Weights have seven bits: a processor without VNNI adds pairs of products in
                # 16 bits, which saturate if both factors have eight bits.
                reduce_range=True,
                weight_type=QuantType.QInt8,
            )
        except Exception as error:  # its errors have no common base class
            raise ExportError(f"ONNX Runtime cannot quantise the program: {error}") from error
        content = small.read_bytes()
    return Derived(
        backend="onnxruntime",
        content=content,
        entry=DerivedProgram(
            name=INT8,
            format="onnx",
            program=FILE,
            derivation=Derivation(
                tool="quant_pre_process and quantize_dynamic of ONNX Runtime",
                versions={
                    name: importlib.metadata.version(name)
                    for name in ("onnxruntime", "paddle2onnx")
                },
                settings={"per_channel": True, "reduce_range": True, "weight_type": "QInt8"},
            ),
        ),
    )


def add_program(directory: Path, derived: Derived) -> None:
    """Publish `derived` in a version; it replaces a program of the same name.

    Both files are written beside the version and renamed into it, the manifest last: a server in
    between finds an unlisted file, and reads the version again. After a power failure in between,
    remove_unlisted() repairs it.
    """
    manifest = read_manifest(directory)
    text = json.loads((directory / MANIFEST).read_text("utf-8"))
    entry = derived.entry
    program = directory.parent / f".{directory.name}-{entry.program}"
    write_synced(program, derived.content)
    others = [each for each in manifest.programs if each.name != entry.name]
    text["format"] = 2
    text["programs"] = [asdict(each) for each in (*others, entry)]
    text["files"][entry.program] = {"bytes": len(derived.content), "sha256": sha256_of(program)}
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

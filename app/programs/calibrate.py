"""Ranges of activations measured on data by NNCF (extra `quantize`), for a simplified graph."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import random
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import onnx

from app.backends.openvino import imported_openvino
from app.contracts.errors import ConfigError
from app.contracts.tensors import Tensors
from app.programs.onnx_graph import Graph
from app.programs.qdq import Ranges, read_ranges

PRESET = "mixed"
SEED = 20


def chosen(files: Sequence[Path], count: int) -> list[Path]:
    """So many of the files, or all; the same ones every time."""
    ordered = sorted(files)
    return sorted(random.Random(SEED).sample(ordered, min(count, len(ordered))))  # noqa: S311


def digest_of(files: Sequence[Path]) -> str:
    """One sha256 for a set of files: of the digests of their contents, sorted."""
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def measure_ranges(
    model: onnx.ModelProto, feeds: Sequence[Tensors], *, float_layers: Sequence[str] = ()
) -> Ranges:
    """The ranges of all that can be quantised beside `float_layers`. Leaves `model` as it is.

    Bias correction is off: on U²-Netp it moves the masks further than quantising does.
    Raises ConfigError without NNCF.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies about each other
            imported_openvino()
            import nncf
    except ImportError as error:
        raise ConfigError(
            "quantising with calibration data needs the package nncf (extra quantize)"
        ) from error
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _quantised(nncf, model, feeds, float_layers)
    return read_ranges(model, found)


def _quantised(
    nncf: ModuleType, model: onnx.ModelProto, feeds: Sequence[Tensors], float_layers: Sequence[str]
) -> onnx.ModelProto:
    return nncf.quantize(
        model,
        nncf.Dataset(list(feeds)),
        preset=nncf.QuantizationPreset(PRESET),
        ignored_scope=nncf.IgnoredScope(names=list(float_layers)) if float_layers else None,
        subset_size=len(feeds),
        advanced_parameters=nncf.AdvancedQuantizationParameters(disable_bias_correction=True),
    )


def versions() -> Mapping[str, str]:
    """What took part, for the manifest."""
    return {name: importlib.metadata.version(name) for name in ("nncf", "onnx", "openvino")}


def layers_of(model: onnx.ModelProto) -> list[str]:
    """The names of a graph's layers, in the order they run."""
    return [layer.name for layer in Graph(model).layers()]

"""How far a program's outputs are from those of its reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from app.backends.openvino import imported_openvino
from app.contracts.errors import ConfigError
from app.contracts.tensors import Array, Tensors, absolute_differences


class Differences:
    """The reference's outputs on some samples, kept; calling it measures a program against them."""

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
    """By OpenVINO, which computes int8 as it will be served."""
    try:
        openvino = imported_openvino()
    except ImportError as error:
        raise ConfigError("quantising needs the package openvino (extra onnx)") from error
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
    """Mean absolute difference, as a share of the largest expected value or, where that is smaller,
    of 1; 0 where there is nothing to compare."""
    if not expected.size:
        return 0.0
    largest = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
    return float(absolute_differences(found, expected).mean()) / largest

"""ONNX Runtime on the CPU, for ONNX programs and converted Paddle programs (extra `engines`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.contracts.errors import BackendUnavailable
from app.contracts.tensors import Tensors
from app.engine.backends.handler import Handler, checked_options, onnx_bytes, serve


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Load the model; called once in the child. Raises BackendUnavailable without the package."""
    checked_options("onnxruntime", opening["options"], {})
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailable(
            "the backend onnxruntime needs the package onnxruntime (extra engines)"
        ) from error
    onnxruntime.set_default_logger_severity(4)  # no log lines: errors are raised as well
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = opening["threads"]
    options.inter_op_num_threads = 1
    # The fused kernel is much slower than the two kernels it replaces (ONNX Runtime 1.31).
    session = onnxruntime.InferenceSession(
        onnx_bytes(opening),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],
    )
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        # The tensors are views of shared memory that the next request overwrites; the session
        # reads them only during the call.
        return list(session.run(None, {name: inputs[name] for name in names}))

    return {}, serve(run)

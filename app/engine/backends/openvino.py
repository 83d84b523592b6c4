"""OpenVINO on the CPU, for ONNX programs and converted Paddle programs (extra `engines`).

OpenVINO can read Paddle programs, but only in the legacy format.
"""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

import numpy as np

from app.contracts.errors import BackendUnavailable
from app.contracts.tensors import Tensors
from app.engine.backends.handler import Handler, checked_options, onnx_bytes, serve


def imported_openvino() -> Any:
    """Import `openvino` without its telemetry. Raises ImportError without the package.

    OpenVINO and NNCF report their use to their makers and store an identifier in the home
    directory. If the package that reports cannot be imported, both use stubs instead.
    """
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))
    import openvino

    return openvino


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Compile the model; called once in the child.

    Raises BackendUnavailable without the package.
    """
    checked_options("openvino", opening["options"], {})
    try:
        openvino = imported_openvino()
    except ImportError as error:
        raise BackendUnavailable(
            "the backend openvino needs the package openvino (extra engines)"
        ) from error
    core = openvino.Core()
    model = core.read_model(onnx_bytes(opening))
    # Names of the model before it is compiled: compiling may rename an input after an operator.
    names = [port.get_any_name() for port in model.inputs]
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": str(opening["threads"]),
            "NUM_STREAMS": "1",
            # By default, the threads of every process are pinned to the first cores.
            "ENABLE_CPU_PINNING": False,
            # By default OpenVINO computes in bfloat16 if the processor can, which changes outputs.
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        request.infer({name: inputs[name] for name in names})
        return [request.get_output_tensor(index).data for index in range(len(compiled.outputs))]

    return {}, serve(run)

"""The golden input and output that a version is tested against when it is loaded."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import inference

from app.contracts.errors import ExportError
from app.contracts.tensors import TensorSpec
from app.models.networks.saved import PARAMS, PROGRAM
from app.models.repository.selftest import write_selftest

TOLERANCE = 1e-3  # ten times the difference of oneDNN and native; a damaged weight far exceeds it
GRID = 4096.0  # golden outputs are rounded to 1/4096 to compress well; far below the tolerance


def run_program(
    directory: Path, feeds: Sequence[NDArray[Any]], *, onednn: bool
) -> list[NDArray[Any]]:
    """Run the saved program on one thread; inputs and outputs are in the program's order."""
    config = inference.Config(str(directory / PROGRAM), str(directory / PARAMS))
    config.disable_gpu()
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(1)
    config.enable_mkldnn() if onednn else config.disable_mkldnn()
    predictor = inference.create_predictor(config)
    for name, array in zip(predictor.get_input_names(), feeds, strict=True):
        handle = predictor.get_input_handle(name)
        handle.reshape(array.shape)
        handle.copy_from_cpu(array)
    predictor.run()
    return [
        predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()
    ]


def capture_selftest(
    directory: Path,
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    feeds: dict[str, NDArray[Any]],
) -> None:
    """Run the saved program on `feeds` and write `selftest.npz`.

    Raises ExportError if an output is not finite, or if oneDNN and the native kernels disagree by
    more than the tolerance: such a version would fail its own test.
    """
    arrays = [np.ascontiguousarray(feeds[spec.name]) for spec in inputs]
    native = run_program(directory, arrays, onednn=False)
    fused = run_program(directory, arrays, onednn=True)
    golden = dict(zip((spec.name for spec in outputs), native, strict=True))
    for (name, value), other in zip(golden.items(), fused, strict=True):
        if not np.isfinite(value).all():
            raise ExportError(f"output {name} of the exported program is not finite")
        drift = float(np.abs(value - other).max())
        if not drift <= TOLERANCE:
            raise ExportError(
                f"output {name}: oneDNN differs by {drift:.1e}, limit {TOLERANCE:.0e}"
            )
    rounded = {name: np.round(value * GRID) / GRID for name, value in golden.items()}
    feeding = dict(zip((spec.name for spec in inputs), arrays, strict=True))
    write_selftest(directory, feeding, rounded, tolerance=TOLERANCE)


LIMIT = 1e-4


def check_against_onnx(directory: Path, model: Path, feed: NDArray[np.float32]) -> None:
    """Raise ExportError if the first outputs differ by more than 1e-4 on `feed`.

    Does nothing without ONNX Runtime, which is an optional dependency: every convolution of the
    file's graph has already been checked.
    """
    if find_spec("onnxruntime") is None:
        return
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        (theirs,) = session.run(
            [session.get_outputs()[0].name], {session.get_inputs()[0].name: feed}
        )
    except Exception as error:  # its errors have no common base class
        raise ExportError(f"ONNX Runtime cannot run {model.name}: {error}") from error
    (ours,) = run_program(directory, [feed], onednn=True)
    difference = float(np.abs(ours - np.asarray(theirs)).max())
    if not difference <= LIMIT:
        raise ExportError(
            f"{model.name}: ONNX Runtime's output differs by {difference:.1e}, limit {LIMIT:.0e}"
        )

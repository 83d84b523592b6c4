"""An exported program compared with the ONNX file its weights came from, where that can be run."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.contracts.errors import ExportError
from app.export.selftest import run_program

LIMIT = 1e-4


def check_against_onnx(directory: Path, model: Path, feed: NDArray[np.float32]) -> None:
    """Raises ExportError when the first outputs differ by more than 1e-4 on `feed`.

    Does nothing without ONNX Runtime, which is an optional dependency: the graph of the file has
    already been checked convolution by convolution.
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
    except Exception as error:  # onnxruntime raises its own unrelated classes
        raise ExportError(f"ONNX Runtime cannot run {model.name}: {error}") from error
    (ours,) = run_program(directory, [feed], onednn=True)
    difference = float(np.abs(ours - np.asarray(theirs)).max())
    if not difference <= LIMIT:
        raise ExportError(
            f"{model.name}: ONNX Runtime's output differs by {difference:.1e}, limit {LIMIT:.0e}"
        )

"""Convert a static Paddle program to ONNX.

    python -m paddlepool.engine.backends.onnx_program DIRECTORY PROGRAM PARAMS

PARAMS is empty for a program without parameters. Writes the ONNX bytes to standard output. The
conversion runs in its own process, so that the backends that need only the result (onnxruntime,
openvino) do not load Paddle into their memory.
"""

import os
import sys
import tempfile
import warnings
from pathlib import Path

OPSET = 18
"""Version of the ONNX operators. Before 18, OpenVINO ignores the axes of some reductions, and the
converter refuses others."""


def main(directory: Path, program: str, params: str) -> None:
    """Write the program as ONNX to standard output. Raises ImportError and converter errors."""
    output = os.dup(1)
    os.dup2(2, 1)  # the converter prints to standard output, which is for the program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle and the converter warn about each other
        import paddle2onnx
    with tempfile.TemporaryDirectory() as scratch, os.fdopen(output, "wb") as stream:
        target = Path(scratch) / "model.onnx"
        paddle2onnx.export(
            str(directory / program),
            str(directory / params) if params else "",
            str(target),
            opset_version=OPSET,
            verbose=False,
            optimize_tool="None",
        )
        stream.write(target.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

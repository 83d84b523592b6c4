"""A static Paddle program as ONNX.

    python -m app.engine.backends.onnx_program DIRECTORY PROGRAM PARAMS

PARAMS is empty for a program without parameters. Writes the ONNX bytes to standard output. A
process of its own, so that those who want only the result (the onnxruntime and openvino backends)
do not carry Paddle in their memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

OPSET = 17


def convert(directory: Path, program: str, params: str) -> bytes:
    """The program's ONNX form. Raises ImportError without the extra `onnx`, or what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Paddle and the converter about each other
        import paddle2onnx
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "model.onnx"
        paddle2onnx.export(
            str(directory / program),
            str(directory / params) if params else "",
            str(target),
            opset_version=OPSET,
            verbose=False,
            optimize_tool="None",
        )
        return target.read_bytes()


def main(arguments: list[str]) -> None:
    directory, program, params = arguments
    answer = os.dup(1)
    os.dup2(2, 1)  # the converter reports on standard output, which is the answer's
    content = convert(Path(directory), program, params)
    with os.fdopen(answer, "wb") as stream:
        stream.write(content)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The served program as ONNX bytes, for the backends that run those.

A program that is ONNX is read; any other is converted. The conversion is not trusted: the engine
runs the version's golden self-test, which the reference itself answered, on every instance of every
group before the group may serve.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.contracts.errors import BackendError

CONVERSION_SECONDS = 120.0
CONVERTER = Path(__file__).parents[1] / "export" / "onnx_program.py"
"""Run as a file: a confined process cannot look for modules in the directory that holds `app`."""


def onnx_bytes(opening: Mapping[str, Any]) -> bytes:
    """Read, or convert in a process that ends with its answer. Raises BackendError."""
    if opening.get("format") == "onnx":
        # As bytes, which cannot refer to weights in files outside the version.
        return Path(opening["directory"], opening["program"]).read_bytes()
    files = [opening["directory"], opening["program"], opening["params"] or ""]
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(CONVERTER), *files],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CONVERSION_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackendError(
            f"the conversion to ONNX took longer than {CONVERSION_SECONDS:.0f} s"
        ) from None
    if done.returncode != 0 or not done.stdout:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise BackendError(f"the program cannot be converted to ONNX: {last[0][:200]}")
    return done.stdout

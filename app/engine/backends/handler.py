"""The child's side of a backend: its handler, its options, and the ONNX form of its program.

A program that is ONNX is read; any other is converted. The conversion is not trusted: the engine
runs the version's golden self-test, which the reference itself answered, on every instance of every
group before the group may serve.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.contracts.errors import BackendError, ConfigError
from app.contracts.tensors import Tensors

CONVERSION_SECONDS = 120.0
CONVERTER = Path(__file__).with_name("onnx_program.py")
"""Run as a file: a confined process cannot look for modules in the directory that holds `app`."""

Run = Callable[[Tensors], Sequence[np.ndarray[Any, Any]]]
Handler = Callable[
    [Mapping[str, Any], Tensors, Sequence[int]], tuple[Mapping[str, Any], Mapping[str, Any]]
]


def serve(run: Run) -> Handler:
    """For backend modules: a child's handler around `run(inputs)`, outputs in manifest order."""

    def handle(
        _meta: Mapping[str, Any], arrays: Tensors, _descriptors: Sequence[int]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return {}, {str(index): output for index, output in enumerate(run(arrays))}

    return handle


def checked_options(
    backend: str, received: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of an instance group over their defaults in `known`, each of the same type.

    Raises ConfigError naming an option that is unknown or of the wrong type.
    """
    for name, value in received.items():
        if name not in known:
            raise ConfigError(
                f"backend {backend} has no option {name!r}, it has {', '.join(known)}",
                received=name,
            )
        if type(value) is not type(known[name]):
            raise ConfigError(
                f"backend {backend}: option {name!r} must be a {type(known[name]).__name__}",
                received=str(value)[:40],
            )
    return {**known, **received}


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
        said = done.stderr.decode(errors="replace").replace(f"{opening['directory']}/", "")
        last = said.strip().splitlines()[-1:] or ["no message"]  # clients read it in /info
        raise BackendError(f"the program cannot be converted to ONNX: {last[0][:200]}")
    return done.stdout

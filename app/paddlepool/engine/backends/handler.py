"""The child's side of a backend: its handler, its options, and the ONNX form of its program.

An ONNX program is read as it is; a Paddle program is converted. The conversion is not trusted:
before an instance serves, the engine runs the version's self-test on the converted program. The
expected outputs of that test come from the original program.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlepool.contracts.errors import BackendError, BackendUnavailable, ConfigError
from paddlepool.contracts.sentences import sentence
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.converter_rules import unconvertible
from paddlepool.engine.backends.paddle_operators import operators_of
from paddlepool.engine.process.worker import Handler as Handler

CONVERSION_SECONDS = 120.0
CONVERTER = Path(__file__).with_name("onnx_program.py")
"""The converter is run as a file, not as a module: a confined process cannot search for modules in
the directory above the package."""
REFUSED = "[ERROR][Paddle2ONNX]"
"""Marks the line in which the converter gives its reason for rejecting a program."""


def serve(run: Callable[[Tensors], Sequence[np.ndarray[Any, Any]]]) -> Handler:
    """Return a child's handler for `run(inputs)`, which returns outputs in the manifest's order.

    The handler returns the outputs as arrays that are named by their positions: "0", "1", ….
    """
    return lambda _meta, arrays, _descriptors: (
        {},
        {str(index): output for index, output in enumerate(run(arrays))},
    )


def checked_options(
    backend: str, received: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of an instance group, merged over their defaults in `known`.

    Raises ConfigError for an option that is unknown or not of its default's type.
    """
    for name, value in received.items():
        if name not in known:
            raise ConfigError(
                f"backend {backend} has no option {name!r}, it has {', '.join(known)}"
            )
        if type(value) is not type(known[name]):
            raise ConfigError(
                f"backend {backend}: option {name!r} must be a {type(known[name]).__name__}"
            )
    return {**known, **received}


WITHOUT_BFLOAT16 = frozenset(
    ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
)
"""Values of oneDNN's limit on instruction sets that exclude bfloat16."""


def check_bfloat16(*, supported: bool) -> None:
    """Raise BackendUnavailable if the processor has no fast bfloat16, or a setting forbids it.

    `supported` is what the framework says of the processor. The setting is an environment variable
    that limits the instructions of oneDNN. Frameworks do not look at it: oneDNN would then fail in
    the first run without a reason, or be ten times slower.
    """
    limits = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # oneDNN uses the first one set
    limit = next((name for name in limits if name in os.environ), "")
    if (highest := os.environ.get(limit, "")).upper() in WITHOUT_BFLOAT16:
        raise BackendUnavailable(
            f"bfloat16: {limit}={highest} forbids the instructions that it needs"
        )
    if not supported:
        raise BackendUnavailable("bfloat16: this processor has no fast bfloat16 (AVX512_BF16, AMX)")


def onnx_bytes(opening: Mapping[str, Any]) -> bytes:
    """Return the bytes of the ONNX program; convert a Paddle program in a process of its own.

    If `opening["converted"]` is set, this file has an earlier conversion, which is returned. If
    `opening["conversion"]` is set, a new conversion is also written to this file.

    Raises BackendError if a Paddle program cannot be read or converted, and OSError if the file of
    an ONNX program cannot be read or the process cannot be started.
    """
    if opening.get("format") == "onnx":
        # Not as a path: a framework could then read weights outside the version's directory.
        return Path(opening["directory"], opening["program"]).read_bytes()
    if reasons := unconvertible(operators_of(Path(opening["directory"], opening["program"]))):
        raise BackendError(
            f"the program cannot be converted to ONNX by paddle2onnx: {'; '.join(reasons)}"
        )
    if converted := opening.get("converted"):
        return Path(converted).read_bytes()
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
        text = done.stderr.decode(errors="replace").replace(f"{opening['directory']}/", "")
        lines = text.strip().split("\n")
        # If the converter ends its own process, its reason is not in the last line.
        own = [line.partition(REFUSED)[2] for line in lines if REFUSED in line]
        reason = sentence((own or lines[-1:])[0], longest=200) or "no message"
        raise BackendError(f"the program cannot be converted to ONNX: {reason}")
    if conversion := opening.get("conversion"):
        Path(conversion).write_bytes(done.stdout)
    return done.stdout

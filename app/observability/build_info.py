"""What this installation is made of, found without importing Paddle."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from app import __version__

CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""The instruction sets that oneDNN chooses its kernels by."""


def build_info() -> dict[str, str]:
    """Labels of `paddlepool_build_info`; a word `none` where something is absent."""
    return {
        "version": __version__,
        "paddle": _paddle_version(),
        "onednn": _onednn_abi(),
        "cpu_flags": _cpu_flags(Path("/proc/cpuinfo")),
    }


def _paddle_version() -> str:
    try:
        return importlib.metadata.version("paddlepaddle")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _onednn_abi() -> str:
    """The ABI number in the name of the oneDNN library that Paddle's package holds."""
    try:
        files = importlib.metadata.files("paddlepaddle") or []
    except importlib.metadata.PackageNotFoundError:
        return "none"
    found = (re.fullmatch(r"libdnnl\.so\.([0-9.]+)", file.name) for file in files)
    return next((match[1] for match in found if match), "none")


def _cpu_flags(cpuinfo: Path) -> str:
    try:
        text = cpuinfo.read_text("ascii", errors="replace")
    except OSError:
        return "none"
    line = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    present = set(line[1].split()) if line else set()
    return "+".join(flag for flag in CPU_FLAGS if flag in present) or "none"

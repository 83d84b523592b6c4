"""What this installation and its machine are made of, found without importing Paddle."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path

from app import __version__
from app.resources import LIBRARY_SWITCHES, available_cores

CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""The instruction sets that oneDNN chooses its kernels by."""

CPUINFO = Path("/proc/cpuinfo")
ENGINES = ("paddlepaddle", "onnxruntime", "openvino", "paddle2onnx")
NONE = "none"


def build_info(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Labels of `paddlepool_build_info`; a word `none` where something is absent."""
    present = _cpu(r"flags", cpuinfo).split()
    return {
        "version": __version__,
        "paddle": _version("paddlepaddle"),
        "onednn": _onednn_abi(),
        "cpu_flags": "+".join(flag for flag in CPU_FLAGS if flag in present) or NONE,
    }


def machine(
    *, environment: Mapping[str, str] = os.environ, cpuinfo: Path = CPUINFO
) -> dict[str, str]:
    """Everything besides the model that a choice among configurations depends on.

    That includes the variables that predictors are given: one of them can mask instructions.
    """
    switches = sorted(
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith(LIBRARY_SWITCHES)
    )
    return {
        "processor": _cpu("model name", cpuinfo),
        "instructions": " ".join(sorted(_cpu("flags|Features", cpuinfo).split())),
        "cores": f"{available_cores():g}",
        "engines": " ".join(f"{name} {_version(name)}" for name in ENGINES),
        "server": __version__,
        "environment": " ".join(switches),
    }


def describe_machine(*, cores: float) -> str:
    """In one line, without its name: processor, usable cores, instruction sets and versions."""
    processor = _cpu("model name", CPUINFO)
    build = build_info()
    return (
        f"{'unknown processor' if processor == NONE else processor}, {cores:g} cores, "
        f"{build['cpu_flags'].replace('+', ' ')}; "
        f"Paddle {build['paddle']}, Paddlepool {build['version']}"
    )


def _cpu(key: str, cpuinfo: Path) -> str:
    """The value of the first line with this key."""
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        return NONE
    found = re.search(rf"^(?:{key})\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else NONE


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NONE


def _onednn_abi() -> str:
    """The ABI number in the name of the oneDNN library that Paddle's package holds."""
    try:
        files = importlib.metadata.files("paddlepaddle") or []
    except importlib.metadata.PackageNotFoundError:
        return NONE
    found = (re.fullmatch(r"libdnnl\.so\.([0-9.]+)", file.name) for file in files)
    return next((match[1] for match in found if match), NONE)

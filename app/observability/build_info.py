"""What this installation and its machine are made of, found without importing Paddle."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path

from app import __version__
from app.contracts.resources import CPUINFO, LIBRARY_SWITCHES, available_cores, cpu_line, processor

ENGINES = ("paddlepaddle", "onnxruntime", "openvino", "paddle2onnx")
NONE = "none"


def build_info(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Labels of `paddlepool_build_info`; a word `none` where something is absent."""
    return {
        "version": __version__,
        "paddle": _version("paddlepaddle"),
        "onednn": _onednn_abi(),
        "cpu_flags": "+".join(processor(cpuinfo).instruction_sets) or NONE,
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
        "processor": cpu_line("model name", cpuinfo) or NONE,
        "instructions": " ".join(sorted((cpu_line("flags|Features", cpuinfo) or NONE).split())),
        "cores": f"{available_cores():g}",
        "engines": " ".join(f"{name} {_version(name)}" for name in ENGINES),
        "server": __version__,
        "environment": " ".join(switches),
    }


def describe_machine(*, cores: float) -> str:
    """In one line, without its name: processor, usable cores, instruction sets and versions."""
    build = build_info()
    return (
        f"{processor().name}, {cores:g} cores, "
        f"{build['cpu_flags'].replace('+', ' ')}; "
        f"Paddle {build['paddle']}, Paddlepool {build['version']}"
    )


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

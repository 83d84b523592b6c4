"""Versions of this installation and properties of its machine, without importing Paddle."""

import contextlib
import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path

from paddlepool import __version__
from paddlepool.contracts.resources import (
    CPUINFO,
    LIBRARY_SWITCHES,
    NO_REPORTS,
    available_cores,
    cpu_line,
    processor,
)

ENGINES = ("paddlepaddle", "onnxruntime", "openvino", "paddle2onnx")
NONE = "none"


def build_info(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return the labels of `paddlepool_build_info`; `none` stands for a missing component."""
    return {
        "version": __version__,
        "paddle": _version("paddlepaddle"),
        "onednn": _onednn_abi(),
        "cpu_flags": "+".join(processor(cpuinfo).instruction_sets) or NONE,
    }


def machine(
    *, environment: Mapping[str, str] = os.environ, cpuinfo: Path = CPUINFO
) -> dict[str, str]:
    """Return the facts about this machine that can change which instance group is the best.

    They include the environment variables of predictors, which can disable instruction sets.
    """
    switches = sorted(
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith(LIBRARY_SWITCHES) and name != NO_REPORTS
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
    """Describe the machine in one line: processor, usable cores, instruction sets and versions.

    The hostname is left out.
    """
    build = build_info()
    return (
        f"{processor().name}, {cores:g} cores, {build['cpu_flags'].replace('+', ' ')}; "
        f"Paddle {build['paddle']}, Paddlepool {build['version']}"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NONE


def _onednn_abi() -> str:
    """Return the ABI number in the name of the oneDNN library in Paddle's package, or `none`."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        # As text: to parse the names of Paddle's 4,000 files would take a tenth of the start.
        files = importlib.metadata.distribution("paddlepaddle").read_text("RECORD") or ""
        if match := re.search(r"/libdnnl\.so\.([0-9.]+),", files):
            return match[1]
    return NONE

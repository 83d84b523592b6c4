"""What a choice among predictor configurations depends on besides the model: the machine."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path

from app import __version__
from app.process.environment import PREFIXES
from app.resources import available_cores

SWITCHES = tuple(prefix for prefix in PREFIXES if prefix not in ("LC_", "PYTHON"))
ENGINES = ("paddlepaddle", "onnxruntime", "openvino", "paddle2onnx")


def describe(
    *, environment: Mapping[str, str] = os.environ, cpuinfo: Path = Path("/proc/cpuinfo")
) -> dict[str, str]:
    """Processor, its instruction sets, cores, versions, and the variables that predictors are given
    (one of them can mask instructions); a word `none` where something is absent."""
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    switches = sorted(
        f"{name}={value}" for name, value in environment.items() if name.startswith(SWITCHES)
    )
    return {
        "processor": _first(r"^model name\s*:\s*(.+)$", text),
        "instructions": " ".join(sorted(_first(r"^(?:flags|Features)\s*:\s*(.+)$", text).split())),
        "cores": f"{available_cores():g}",
        "engines": " ".join(f"{name} {_version(name)}" for name in ENGINES),
        "server": __version__,
        "environment": " ".join(switches),
    }


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else "none"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"

"""OpenVINO and NNCF without their telemetry, which reports their use to their makers and keeps an
identity in the home directory."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, cast


def without_telemetry() -> None:
    """Make the package that reports look as if it were not installed: both have stubs for that."""
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))


def imported_openvino() -> Any:
    """Return the package `openvino`. Raises ImportError where it is not installed."""
    without_telemetry()
    import openvino

    return openvino

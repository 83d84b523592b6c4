"""Checks that the extra that a setting needs is installed."""

from __future__ import annotations

import importlib.util

from app.contracts.errors import ConfigError

PACKAGES = {
    "grpc": ("grpc", "grpc_health", "grpc_reflection"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Packages of each extra that the server can run without."""


def require_extra(extra: str, *, setting: str) -> None:
    """Raise ConfigError, with the command that installs the extra, if a package is missing."""
    if missing := [name for name in PACKAGES[extra] if not _is_there(name)]:
        raise ConfigError(
            f"{setting} is set, and {', '.join(missing)} not installed: "
            f"pip install 'paddlepool[{extra}]'"
        )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing, too
        return False

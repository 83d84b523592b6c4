"""The machine a comparison runs on: what it is, in one line without its name."""

from __future__ import annotations

import re
from pathlib import Path

from app.observability.build_info import build_info


def describe_machine(*, cores: float, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Processor, usable cores, instruction sets and the versions that decide the times."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    build = build_info()
    processor = found[1].strip() if found else "unknown processor"
    return (
        f"{processor}, {cores:g} cores, {build['cpu_flags'].replace('+', ' ')}; "
        f"Paddle {build['paddle']}, Paddlepool {build['version']}"
    )

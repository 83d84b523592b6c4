"""The machine a comparison runs on: what it is, in one line without its name, and its memory."""

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


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that processes could take without swapping; 0 where the kernel does not say."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo.read_text("ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0

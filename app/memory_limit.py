"""How much memory this process and its children may use together."""

from __future__ import annotations

import os
from pathlib import Path


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """In bytes: the machine's, or the limit of its control group (v2, v1) where that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int((cgroup / name).read_text("ascii")))
        except (OSError, ValueError):
            continue  # not there, or "max": no limit
    return min(limits)

"""What this process and its children may use together: memory and processor cores."""

from __future__ import annotations

import os
from collections.abc import Iterable
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


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores this process may use: its CPU affinity, and the quota of its control group (v2, v1)."""
    cores = float(len(os.sched_getaffinity(0)))
    return min(cores, *_quotas(cgroup), cores)


def _quotas(cgroup: Path) -> Iterable[float]:
    for quota_file, period_file in (
        ("cpu.max", None),
        ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
    ):
        try:
            words = (cgroup / quota_file).read_text("ascii").split()
            if period_file is not None:
                words += (cgroup / period_file).read_text("ascii").split()
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):
            continue  # not there, or "max": no quota
        if quota > 0 and period > 0:
            yield quota / period

"""How many processes an instance group with `count = "cores"` has on this machine."""

from __future__ import annotations

import math
from typing import Any

from app.resources import available_cores, memory_limit

CORES = "cores"
MAX_COUNT = 64
BYTES_OF_A_PROCESS = 1 << 30
"""What a process is taken to need, so that a machine of many cores and little memory is not filled:
a predictor of the models that come with this package takes a tenth to a half of it."""


def processes_for(threads: int, *, cores: float, memory_bytes: int) -> int:
    """How many processes of so many threads fill the cores; at most one for each GiB of memory."""
    return max(1, min(math.ceil(cores) // threads, memory_bytes // BYTES_OF_A_PROCESS, MAX_COUNT))


def with_counts(table: dict[str, Any]) -> dict[str, Any]:
    """The same with numbers in the place of `count = "cores"`, on this machine."""
    groups = table.get("instance_group")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and group.get("count") == CORES:
            threads = group.get("threads", 1)
            if isinstance(threads, int) and threads > 0:  # else the model refuses it by name
                group["count"] = processes_for(
                    threads, cores=available_cores(), memory_bytes=memory_limit()
                )
    return table

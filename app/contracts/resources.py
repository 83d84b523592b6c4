"""Memory and processor cores available to this process and its children, and what those can do."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

M_ARENA_MAX = -8
"""Parameter of glibc's mallopt()."""

LIBRARY_SWITCHES = (
    "MALLOC_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TBB_",
    "ONEDNN_", "DNNL_", "FLAGS_", "GLOG_", "PADDLE_", "OPENVINO_", "OV_", "ORT_", "OPENCV_",
    "CUDA_", "NVIDIA_",
)  # fmt: skip
"""Beginnings of the variables that the allocator, thread pools and frameworks read."""


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """In bytes: the machine's, or the limit of its control group (v2, v1) where that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int((cgroup / name).read_text("ascii")))
        except (OSError, ValueError):
            continue  # not there, or "max": no limit
    return min(limits)


def available_memory(
    cgroup: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")
) -> int:
    """In bytes, what processes could take besides what they have: of the machine without swapping,
    or below the limit of its control group (v2, v1) where that is less; 0 where nothing is known.
    """
    free = []
    if found := _numbers(meminfo).get("MemAvailable:"):
        free.append(found * 1024)
    for limit, usage, stat, cache in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            most, held = (int((cgroup / name).read_text("ascii")) for name in (limit, usage))
        except (OSError, ValueError):
            continue  # not there, or "max": no limit
        free.append(most - held + _numbers(cgroup / stat).get(cache, 0))
    return max(0, min(free, default=0))


def use_one_heap() -> None:
    """All threads of this process allocate from one heap. Call it before there are threads.

    glibc gives each thread one of its own, up to eight for each core, and what was freed in one
    serves no other: the resident memory of a process with many threads creeps up for hours.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """What nothing uses any more returns to the system, objects that know each other included.

    Takes a few milliseconds. Left alone, the collector looks at what is old when there is a quarter
    more of it, and the allocator keeps the pages between those in use.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _numbers(file: Path) -> dict[str, int]:
    """The first number of each line by the word before it."""
    try:
        lines = [line.split() for line in file.read_text("ascii").splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


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


CPUINFO = Path("/proc/cpuinfo")
X86 = (
    "avx2", "fma", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
)  # fmt: skip
ARM = ("asimddp", "i8mm", "bf16", "sve")
SUMS_OF_32_BITS = frozenset({"avx_vnni", "avx512_vnni", "amx_int8"})
NARROW_SUMS = (
    "this processor adds eight-bit products in 16 bits, in which a program with weights of eight "
    "bits saturates"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The instruction sets by which frameworks choose their kernels, and what follows from them."""

    name: str
    instruction_sets: tuple[str, ...]
    missing: tuple[str, ...]
    remark: str | None


def processor(cpuinfo: Path = CPUINFO) -> Processor:
    """Read it; everything is empty where the system tells nothing."""
    x86 = cpu_line("flags", cpuinfo)
    found = (x86 or cpu_line("Features", cpuinfo) or "").split()
    known = X86 if x86 else ARM if found else ()
    narrow = x86 is not None and SUMS_OF_32_BITS.isdisjoint(found)
    return Processor(
        name=cpu_line("model name", cpuinfo) or "unknown processor",
        instruction_sets=tuple(each for each in known if each in found),
        missing=tuple(each for each in known if each not in found),
        remark=NARROW_SUMS if narrow else None,
    )


def cpu_line(key: str, cpuinfo: Path = CPUINFO) -> str | None:
    """The value of the first line with this key; None where there is none."""
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^(?:{key})\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None

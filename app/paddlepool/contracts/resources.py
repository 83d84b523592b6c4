"""Memory, processor cores and instruction sets available to this process and its children."""

import contextlib
import ctypes
import gc
import os
import re
from dataclasses import dataclass
from pathlib import Path

M_ARENA_MAX = -8
"""Parameter of glibc's mallopt(): the maximum number of heaps."""

LIBRARY_SWITCHES = (
    "MALLOC_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TBB_",
    "ONEDNN_", "DNNL_", "FLAGS_", "GLOG_", "PADDLE_", "OPENVINO_", "OV_", "ORT_", "OPENCV_",
    "CUDA_", "NVIDIA_",
)  # fmt: skip
"""Prefixes of the environment variables that the allocator, thread pools and frameworks read."""

NO_REPORTS = "ORT_DISABLE_TELEMETRY"
"""Unless this variable is set, ONNX Runtime reports its use and stores an identifier in the home
directory. The variable changes no result."""


CGROUP = Path("/sys/fs/cgroup")


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Return the machine's memory in bytes, or the control group's limit (v2, v1) if lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    newer, older = "memory.max", "memory/memory.limit_in_bytes"
    return min([machine, *_numbers(cgroup, newer), *_numbers(cgroup, older)])


def available_memory(cgroup: Path = CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that processes can still allocate; 0 if unknown.

    That is the machine's memory that is available without swapping, or what the control group (v2,
    v1) may still use below its limit, if that is less. The group's inactive file cache counts as
    available.
    """
    v1 = cgroup / "memory"
    free = [1024 * kilobytes for kilobytes in _named_numbers(meminfo, "MemAvailable:")]
    for folder, limit, usage, cache in (
        (cgroup, "memory.max", "memory.current", "inactive_file"),
        (v1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        match _numbers(folder, limit, usage):
            case [maximum, used]:
                free.append(maximum - used + sum(_named_numbers(folder / "memory.stat", cache)))
    return max(0, min(free, default=0))


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the system has devices of an NVIDIA GPU, or of one that WSL passes through.

    Loads no CUDA and no driver.
    """
    return any((devices / name).exists() for name in ("nvidiactl", "dxg"))


def use_one_heap() -> None:
    """Make all threads allocate from one heap. Call it before threads start.

    By default glibc gives threads heaps of their own; memory freed in one serves no other. With
    another C library, nothing changes.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """Return unused memory to the system, including objects in reference cycles.

    Takes a few milliseconds. Without this call, the garbage collector examines old objects only
    when their number has grown by a quarter, and the allocator keeps free pages between used ones.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def available_cores(cgroup: Path = CGROUP) -> float:
    """Return the number of usable cores: CPU affinity, or the control group's quota if lower.

    A quota may be a fraction, such as 1.5.
    """
    cores = [float(len(os.sched_getaffinity(0)))]
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        match _numbers(cgroup, *names):
            case [quota, period] if quota > 0 and period > 0:
                cores.append(quota / period)
    return min(cores)


def _numbers(folder: Path, *names: str) -> list[int]:
    """Return all numbers in these files; [] if a file is missing or has "max" (no limit)."""
    try:
        return [int(word) for name in names for word in (folder / name).read_text("ascii").split()]
    except (OSError, ValueError):
        return []


def _named_numbers(file: Path, name: str) -> list[int]:
    """Return the numbers that follow `name` at the start of a line; [] if there are none."""
    with contextlib.suppress(OSError):
        return [int(n) for n in re.findall(rf"^{name}\s+(\d+)", file.read_text("ascii"), re.M)]
    return []


CPUINFO = Path("/proc/cpuinfo")
X86 = (
    "avx2", "fma", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
)  # fmt: skip
ARM = ("asimddp", "i8mm", "bf16", "sve")
SUMS_OF_32_BITS = frozenset({"avx_vnni", "avx512_vnni", "amx_int8"})
NARROW_SUMS = (
    "this processor adds eight-bit products in 16 bits, which saturates in programs with eight-bit "
    "weights"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The properties of the processor by which frameworks choose their kernels.

    Of the instruction sets in X86 or ARM, it has `instruction_sets` and lacks `missing`. `remark`
    says that programs with int8 weights saturate on it; None if they do not.
    """

    name: str
    instruction_sets: tuple[str, ...]
    missing: tuple[str, ...]
    remark: str | None


def processor(cpuinfo: Path = CPUINFO) -> Processor:
    """Describe the processor; its tuples are empty if the system reports no instruction sets."""
    x86 = cpu_line("flags", cpuinfo)
    flags = (x86 or cpu_line("Features", cpuinfo) or "").split()
    known = X86 if x86 else ARM if flags else ()
    narrow = x86 is not None and SUMS_OF_32_BITS.isdisjoint(flags)
    return Processor(
        name=cpu_line("model name", cpuinfo) or "unknown processor",
        instruction_sets=tuple(name for name in known if name in flags),
        missing=tuple(name for name in known if name not in flags),
        remark=NARROW_SUMS if narrow else None,
    )


def cpu_line(key: str, cpuinfo: Path = CPUINFO) -> str | None:
    """Return the value of the first line of `cpuinfo` with this key (a pattern), or None."""
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(rf"^(?:{key})\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else None

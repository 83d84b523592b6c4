"""What this kernel can confine a process by, asked without the code that does it."""

import ctypes
from pathlib import Path

import pytest

from paddlepool.engine.process.confinement import MEASURES
from paddlepool.tasks.codecs.pool import CodecPool, CodecProcess

LANDLOCK_CREATE_RULESET, ASK_VERSION = 444, 1


def available_measures() -> tuple[str, ...]:
    """Of MEASURES, in their order."""
    version = ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, 0, ASK_VERSION)
    has = {
        "no_new_privileges": True,
        "landlock": version >= 1,
        "seccomp": "\nSeccomp:" in Path("/proc/self/status").read_text("ascii"),
    }
    return tuple(measure for measure in MEASURES if has[measure])


def check_held(measures: tuple[str, ...] | None) -> None:
    """All that the kernel has is in force; skips the rest of the test where that is not all."""
    available = available_measures()
    assert measures == available
    if available != MEASURES:
        pytest.skip(f"this kernel has only {', '.join(available)}")


def live_pids(pool: CodecPool) -> list[int]:
    workers = [slot._worker for slot in pool._instances if slot._uses_worker()]
    return [w.pid for w in workers if isinstance(w, CodecProcess) and not w.failure()]

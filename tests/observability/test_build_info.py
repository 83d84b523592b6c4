"""What `paddlepool_build_info` says."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from app import __version__
from app.observability.build_info import build_info


def test_the_build_is_known_without_importing_paddle() -> None:
    """From the installed package's own record."""
    build = build_info()
    assert build["version"] == __version__
    assert build["paddle"] == importlib.metadata.version("paddlepaddle")
    assert re.fullmatch(r"[0-9.]+", build["onednn"])


def test_only_flags_that_choose_kernels_are_told(tmp_path: Path) -> None:
    """In a fixed order, so that two machines with the same have the same label."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags\t\t: fpu avx512f fma sse avx2 \nbugs : y\n")
    assert build_info(cpuinfo)["cpu_flags"] == "avx2+fma+avx512f"
    cpuinfo.write_text("flags : fpu\n")
    assert build_info(cpuinfo)["cpu_flags"] == "none"
    assert build_info(tmp_path / "missing")["cpu_flags"] == "none"

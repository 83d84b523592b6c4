"""What `paddlepool_build_info` says."""

from pathlib import Path

from app.observability.build_info import build_info


def test_only_flags_that_choose_kernels_are_told(tmp_path: Path) -> None:
    """In a fixed order, so that two machines with the same have the same label."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags\t\t: fpu avx512f fma sse avx2 \nbugs : y\n")
    assert build_info(cpuinfo)["cpu_flags"] == "avx2+fma+avx512f"
    cpuinfo.write_text("flags : fpu\n")
    assert build_info(cpuinfo)["cpu_flags"] == "none"
    assert build_info(tmp_path / "missing")["cpu_flags"] == "none"

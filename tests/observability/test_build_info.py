"""What `paddlepool_build_info` says."""

from pathlib import Path

import pytest

from paddlepool.contracts.resources import processor
from paddlepool.observability.build_info import build_info


def test_only_flags_that_choose_kernels_are_told(tmp_path: Path) -> None:
    """In a fixed order, so that two machines with the same have the same label."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags\t\t: fpu avx512f fma sse avx2 \nbugs : y\n")
    assert build_info(cpuinfo)["cpu_flags"] == "avx2+fma+avx512f"
    cpuinfo.write_text("flags : fpu\n")
    assert build_info(cpuinfo)["cpu_flags"] == "none"
    assert build_info(tmp_path / "missing")["cpu_flags"] == "none"


@pytest.mark.parametrize(
    ("line", "present", "narrow"),
    [
        ("flags : avx2 fma", ("avx2", "fma"), True),
        ("flags : fma avx2 avx_vnni", ("avx2", "fma", "avx_vnni"), False),
        ("flags : avx512f avx512_vnni", ("avx512f", "avx512_vnni"), False),
        ("Features : fp asimd asimddp", ("asimddp",), False),
        ("", (), False),
    ],
    ids=["avx2", "avx_vnni", "avx512_vnni", "ARM", "unknown"],
)
def test_sums_of_16_bits_are_told(
    line: str, present: tuple[str, ...], narrow: bool, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"{line}\n")
    found = processor(cpuinfo)
    assert (found.instruction_sets, found.remark is not None) == (present, narrow)
    assert not set(found.missing) & set(present)

"""What `paddlepool_build_info` says."""

from pathlib import Path

import pytest

from paddlepool.contracts.resources import processor
from paddlepool.observability.build_info import build_info


@pytest.mark.parametrize(
    ("line", "present", "narrow"),
    [
        ("model name : x\nflags\t\t: fpu fma sse avx2 \nbugs : y", ("avx2", "fma"), True),
        ("flags : fma avx2 avx_vnni", ("avx2", "fma", "avx_vnni"), False),
        ("flags : avx512f avx512_vnni", ("avx512f", "avx512_vnni"), False),
        ("Features : fp asimd asimddp", ("asimddp",), False),
        ("", (), False),
    ],
    ids=["avx2", "avx_vnni", "avx512_vnni", "ARM", "unknown"],
)
def test_flags_that_choose_kernels_are_told(
    line: str, present: tuple[str, ...], narrow: bool, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"{line}\n")
    found = processor(cpuinfo)
    assert build_info(cpuinfo)["cpu_flags"] == ("+".join(present) or "none")
    assert (found.instruction_sets, found.remark is not None) == (present, narrow)
    assert not set(found.missing) & set(present)

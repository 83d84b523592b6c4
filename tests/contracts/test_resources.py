"""What the machine, or the container, grants."""

import platform
import sys
from pathlib import Path

import pytest

from paddlepool.contracts.resources import available_cores, available_memory, has_gpu, memory_limit
from tests.ran import ran


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({"cpu.max": "50000 100000"}, 0.5, id="v2"),
        pytest.param({"cpu.max": "max 100000"}, None, id="v2 without a limit"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000"}, 0.25, id="v1"
        ),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, id="v1 free"
        ),
        pytest.param({"cpu.max": "nonsense"}, None, id="unreadable"),
        pytest.param({}, None, id="no control group"),
    ],
)
def test_the_control_group_lowers_the_cores(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    """The quota counts where it is below the CPU affinity, and only where there is one."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n", "ascii")
    unlimited = available_cores(tmp_path / "nowhere")
    assert unlimited >= 1
    assert available_cores(tmp_path) == (unlimited if quota is None else quota)


def test_the_memory_limit_is_the_containers(tmp_path: Path) -> None:
    machine = memory_limit(tmp_path)
    assert machine > 2**28
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == machine
    (tmp_path / "memory.max").write_text("268435456\n")
    assert memory_limit(tmp_path) == 2**28
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("134217728\n")
    assert memory_limit(tmp_path) == 2**27


def test_what_is_free_is_free_in_the_container(tmp_path: Path) -> None:
    """Files that it keeps in memory and has not used lately count as free."""
    meminfo = tmp_path / "meminfo"
    assert available_memory(tmp_path, meminfo) == 0
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:   5000 kB\n")
    assert available_memory(tmp_path, meminfo) == 5_120_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    assert available_memory(tmp_path, meminfo) == 5_120_000
    (tmp_path / "memory.max").write_text("4000000\n")
    assert available_memory(tmp_path, meminfo) == 1_000_000
    (tmp_path / "memory.stat").write_text("anon 2500000\ninactive_file 400000\n")
    assert available_memory(tmp_path, meminfo) == 1_400_000
    v1 = tmp_path / "memory"
    v1.mkdir()
    (v1 / "memory.limit_in_bytes").write_text("3000000\n")
    (v1 / "memory.usage_in_bytes").write_text("3500000\n")
    (v1 / "memory.stat").write_text("total_inactive_file 600000\n")
    assert available_memory(tmp_path, meminfo) == 100_000


HEAPS = """
import ctypes, sys, threading
from paddlepool.contracts.resources import use_one_heap
{before}
begun, done = threading.Barrier(7), threading.Barrier(7)
def work():
    kept = [bytearray(5000) for _ in range(100)]
    begun.wait()
    done.wait()
for _ in range(6):
    threading.Thread(target=work).start()
begun.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
done.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("before", "one"), [("use_one_heap()", True), ("", False)])
def test_threads_share_one_heap(tmp_path: Path, before: str, one: bool) -> None:
    heaps = tmp_path / "heaps.xml"
    program = HEAPS.format(before=before)
    ran([sys.executable, "-c", program, str(heaps)])
    assert (heaps.read_text("ascii").count("<heap nr=") == 1) is one


def test_a_gpu_is_known_by_its_devices(tmp_path: Path) -> None:
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert has_gpu(tmp_path)

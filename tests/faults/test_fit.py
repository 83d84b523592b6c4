"""Each planted fault still fits the code: what it changes is there once, and its tests exist."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.faults.run import ROOT, Fault, import_path
from tests.ran import ran

FAULTS = [
    Fault(**table)
    for area in sorted(Path(__file__).parent.glob("*.toml"))
    for table in tomllib.loads(area.read_text("utf-8"))["fault"]
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_fits(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text("utf-8").count(fault.find) == 1
    for test in fault.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text("utf-8") if (ROOT / file).is_file() else ""
        assert (ROOT / file).exists()
        assert name.partition("[")[0] in text


def test_processes_of_tests_import_the_copy(tmp_path: Path) -> None:
    """Otherwise a fault in a server or a child process has no effect."""
    names = {fault.file.rpartition("/src/")[2].removeprefix("app/") for fault in FAULTS}
    packages = {name.partition("/")[0] for name in names if name.startswith("paddlepool")}
    assert packages == {"paddlepool", "paddlepool_client"}
    for package, folder in (("paddlepool", "app"), ("paddlepool_client", "clients/python/src")):
        (tmp_path / folder / package).mkdir(parents=True)
        (tmp_path / folder / package / "__init__.py").touch()
        program = f"import {package}; print({package}.__file__)"
        environment = {**os.environ, "PYTHONPATH": import_path(tmp_path)}
        done = ran([sys.executable, "-c", program], env=environment)
        assert done.stdout.startswith(str(tmp_path))

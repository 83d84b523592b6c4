"""Each planted fault still fits the code: what it changes is there once, and its tests exist."""

import tomllib
from pathlib import Path

import pytest

from tests.faults.run import ROOT, Fault

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

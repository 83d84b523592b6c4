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

WITHOUT_FAULT = """
cli/compare.py cli/composed.py cli/quantize.py cli/shared.py cli/tune.py
compat/hugging_face.py compat/rembg.py contracts/errors.py contracts/ports.py contracts/status.py
engine/backends/openvino_rules.py engine/backends/paddle_inference.py
engine/backends/paddle_operators.py engine/backends/paddle_profile.py evidence/comparison/graph.py
evidence/comparison/result.py evidence/quality/ports.py
evidence/quality/report.py evidence/quality/run.py making/programs/onnx_graph.py
models/networks/bert.py models/networks/u2net.py service/api/info.py service/scale/ray.py
tasks/segment/evaluation.py tasks/segment/foreground.py tasks/segment/refine.py
tasks/sentiment/evaluation.py tasks/sentiment/router.py tasks/task.py
"""
"""Modules of more than 100 lines that no fault changes yet."""


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


def test_every_module_of_some_size_has_a_fault() -> None:
    """Of more than 100 lines; WITHOUT_FAULT lists the others until they have one."""
    package = ROOT / "app" / "paddlepool"
    sizes = {
        str(path.relative_to(package)): path.read_text("utf-8").count("\n")
        for path in package.rglob("*.py")
    }
    changed = {fault.file.removeprefix("app/paddlepool/") for fault in FAULTS}
    listed = set(WITHOUT_FAULT.split())
    assert {module for module, lines in sizes.items() if lines > 100} - changed - listed == set()
    assert listed - set(sizes) == set(), "remove what is gone"
    assert listed & changed == set(), "remove what has a fault"

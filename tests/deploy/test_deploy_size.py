"""The table of what takes the space in the image."""

import re
from types import ModuleType

import pytest

from tests.deploy.conftest import Script
from tests.ran import ROOT


@pytest.fixture
def size(script: Script) -> ModuleType:
    return script("deploy/container/size.py")


def test_what_is_not_counted_is_what_the_dockerfile_removes(size: ModuleType) -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    [removed] = re.findall(r"for unneeded in ([^;]+);", text)
    assert tuple(removed.split()) == size.UNNEEDED
    assert size.removed(("paddle", "include", "x.h"))
    assert size.removed(("numpy", "tests", "test_x.py"))
    assert not size.removed(("paddle", "libs", "libopenvino.so.2500"))
    assert not size.removed(("onnx", "backend", "testing.py"))


def test_no_module_of_the_server_needs_what_is_removed() -> None:
    removed = r"(?:import|from) (?:onnx\.backend\.test|onnxruntime\.transformers)\b"
    sources = [path.read_text("utf-8") for path in (ROOT / "app").rglob("*.py")]
    assert re.search(removed, "from onnx.backend.test import runner")
    assert len(sources) > 100
    assert [source for source in sources if re.search(removed, source)] == []


def test_the_table_adds_up(size: ModuleType) -> None:
    """Largest first, small packages together in one row."""
    lines = size.table({"big": 30_000_000, "bigger": 50_000_000, "a": 4_000_000, "b": 0}, 6_000_000)
    assert lines.splitlines()[2:] == [
        "| bigger | 50 |",
        "| big | 30 |",
        "| 2 other packages | 4 |",
        "| model repository | 6 |",
        "| **together** | **90** |",
    ]


def test_the_packages_that_the_image_keeps_are_measured(
    size: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"paddlepaddle", "openvino"} <= size.shipped_packages()
    assert size.main(["--models", str(ROOT / "docs" / "images"), "numpy"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^\| numpy \| \d\d \|$", out, re.M)
    assert "openvino" not in out.splitlines()[2]
    assert "Of paddlepaddle: libpaddle.so " in out

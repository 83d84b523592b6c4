"""The cost of the full network is measured on what would be served, with weights from a seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_network import export_random, main

pytestmark = pytest.mark.paddle


def test_weights_are_random_and_the_same_every_time(tmp_path: Path) -> None:
    """The manifest says that they are random; a second export has the same ones."""
    first, second = (export_random(tmp_path / name, "u2netp", side=32) for name in ("a", "b"))
    assert first.manifest.weights["origin"] == "random"
    assert first.manifest.weights["sha256"] == second.manifest.weights["sha256"]


def test_both_networks_get_a_line_and_an_absent_group_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Time and memory of each, and the full network holds more."""
    main(["--groups", "native,gpu", "--runs", "1", "--side", "32"])
    lines = capsys.readouterr().out.splitlines()
    small, full = (line.split() for line in lines if line.startswith("native"))
    assert (small[1], full[1]) == ("u2netp", "u2net")
    assert float(full[6]) > float(small[6]) > 0
    assert any(line.startswith("gpu") and "NOT MEASURED" in line for line in lines)

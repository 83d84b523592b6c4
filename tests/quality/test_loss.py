"""What one group loses against another: every figure's difference, and the outputs' own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.quality.ports import Findings, Table
from app.quality.run import compare_outputs, differences
from tests.engine.fakes import write_double


def figures(iou: float) -> Findings:
    rows = (("served mask", (155, iou)),)
    return Findings(tables=(Table(key="v", title="Pairs", columns=("pairs", "IoU"), rows=rows),))


def test_figures_are_subtracted_and_counts_are_not() -> None:
    """A count of items belongs to both."""
    [table] = differences(figures(0.9), figures(0.875), base="onednn")
    assert table.title == "Pairs: difference from onednn"
    [(name, (pairs, iou))] = table.rows
    assert (name, pairs, iou) == ("served mask", 155, pytest.approx(-0.025))


def test_outputs_are_compared_run_by_run() -> None:
    """The mean, the worst run, and what the task itself calls agreement."""
    expected = [{"y": np.array([[0.0, 1.0]])}, {"y": np.array([[1.0, 0.0]])}]
    found = [{"y": np.array([[0.0, 1.0]])}, {"y": np.array([[0.8, 0.2]])}]
    table = compare_outputs(
        found, expected, agreement=lambda ours, theirs: float(ours is not theirs), base="onednn"
    )
    [(_, values)] = table.rows
    assert table.columns == ("runs", "mean difference", "worst mean", "agreement")
    assert values == (2, pytest.approx(0.1), pytest.approx(0.2), 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--group", "main"], "--group belongs to --quality"),
        (["--quality", "--group", "main", "--write-cards"], "--write-cards is for the default"),
    ],
)
def test_a_group_goes_with_quality_and_without_cards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """One line before any predictor starts."""
    write_double(tmp_path)
    assert main(["models", "verify", *options, "--repository", str(tmp_path)]) == 1
    assert f"paddlepool models: {message}" in capsys.readouterr().err

"""`paddlepool sentiment` refuses wrong arguments before it touches a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main


@pytest.fixture
def posts(tmp_path: Path) -> Path:
    path = tmp_path / "posts.csv"
    path.write_text("id,words\n1,好\n", "utf-8")
    return path


def test_a_missing_column_leaves_earlier_results(
    posts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error must not empty what a long run has written."""
    output = posts.with_suffix(".emotion.csv")
    output.write_text("results of yesterday", "utf-8")
    assert main(["sentiment", str(posts)]) == 1
    assert "has no column 'text', it has ['id', 'words']" in capsys.readouterr().err
    assert output.read_text("utf-8") == "results of yesterday"


def test_the_input_is_never_the_output(posts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Opening it for writing would lose the texts before they are read."""
    before = posts.read_bytes()
    command = ["sentiment", str(posts), "--column", "words", "-o", str(posts)]
    assert main(command) == 1
    assert "is the input" in capsys.readouterr().err
    assert posts.read_bytes() == before

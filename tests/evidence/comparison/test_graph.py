"""`paddlepool graph`: the operators a real predictor runs, and the drawing of them."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from paddlepool.cli import main
from tests.model_files import group

pytestmark = pytest.mark.slow  # reads the programs of a whole model


@pytest.mark.paddle
def test_a_real_graph_is_fused_timed_and_drawn(
    tiny_model_repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The convolution has taken the relu in; every operator left has a time; links are in order. A
    group of another framework has no such graph."""
    svg, listing = tmp_path / "graph.svg", tmp_path / "graph.json"
    arguments = ["graph", "tiny", "--repository", str(tiny_model_repository)]
    assert main([*arguments, "--svg", str(svg), "--json", str(listing)]) == 0
    printed = capsys.readouterr().out
    assert "+ relu" in printed
    found = json.loads(listing.read_text("utf-8"))
    assert found["before"] > len(found["operators"]) >= 3
    for place, operator in enumerate(found["operators"]):
        assert operator["milliseconds"] > 0
        assert all(source < place for source in operator["sources"])
    assert sum(len(operator["sources"]) for operator in found["operators"]) >= 2
    text = "".join(ElementTree.parse(svg).getroot().itertext())
    assert "+ relu" in text
    assert main([*arguments, "--group", "jit"]) == 1
    assert "--group must be one of onednn, native" in capsys.readouterr().err


def test_a_model_without_such_a_group_says_so(
    tiny_model_repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its default group is of another backend, and so are all others."""
    models = shutil.copytree(tiny_model_repository, tmp_path / "models")
    (models / "tiny" / "config.toml").write_text(
        'default_group = "jit"\n' + group("jit", backend="paddle_jit")
    )
    assert main(["graph", "tiny", "--repository", str(models)]) == 1
    assert "tiny has no instance group of Paddle Inference" in capsys.readouterr().err


@pytest.mark.paddle
def test_the_default_is_a_group_that_has_a_graph(
    tiny_model_repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = shutil.copytree(tiny_model_repository, tmp_path / "models")
    groups = group("jit", backend="paddle_jit") + group("onednn", backend="paddle_inference")
    (models / "tiny" / "config.toml").write_text('default_group = "jit"\n' + groups)
    assert main(["graph", "tiny", "--repository", str(models)]) == 0
    assert "group onednn" in capsys.readouterr().out

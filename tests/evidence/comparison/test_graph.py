"""`paddlepool graph`: the operators a real predictor runs, and the drawing of them."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from paddlepool.cli import main
from paddlepool.contracts.errors import BackendError
from paddlepool.evidence.comparison.graph import profile_graph
from paddlepool.models.repository.layout import ModelRepository
from tests.model_files import add_to_config, group, write_config

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


@pytest.mark.paddle
def test_a_process_that_takes_too_long_is_reported(tiny_model_repository: Path) -> None:
    files = ModelRepository(tiny_model_repository).read("tiny", 1)
    with pytest.raises(BackendError, match="process that profiled the program ended"):
        profile_graph(files, "onednn", timeout=0.001)


@pytest.mark.paddle
def test_only_a_group_of_paddle_inference_has_a_graph(
    tiny_model_repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the default of the command; a model without one says so."""
    models = shutil.copytree(tiny_model_repository, tmp_path / "models")
    arguments = ["graph", "tiny", "--repository", str(models)]
    write_config(models / "tiny", 'default_group = "jit"\n' + group("jit", backend="paddle_jit"))
    assert main(arguments) == 1
    assert "tiny has no instance group of Paddle Inference" in capsys.readouterr().err
    add_to_config(models / "tiny", group("onednn", backend="paddle_inference"))
    assert main(arguments) == 0
    assert "group onednn" in capsys.readouterr().out

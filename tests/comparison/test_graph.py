"""`paddlepool graph`: the operators a real predictor runs, and the drawing of them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from app.cli import main
from app.comparison.graph import Graph, Operator, draw

pytestmark = pytest.mark.slow  # reads the programs of a whole model


@pytest.mark.paddle
def test_a_real_graph_is_fused_timed_and_drawn(
    tiny_model_repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The convolution has taken the relu in; every operator left has a time; links are in order."""
    svg, listing = tmp_path / "graph.svg", tmp_path / "graph.json"
    arguments = ["graph", "tiny", "--repository", str(tiny_model_repository)]
    assert main([*arguments, "--svg", str(svg), "--json", str(listing)]) == 0
    printed = capsys.readouterr().out
    assert "+ relu" in printed
    found = json.loads(listing.read_text("utf-8"))
    assert found["before"] > len(found["operators"]) >= 3
    for place, each in enumerate(found["operators"]):
        assert each["milliseconds"] > 0
        assert all(source < place for source in each["sources"])
    assert sum(len(each["sources"]) for each in found["operators"]) >= 2
    text = "".join(ElementTree.parse(svg).getroot().itertext())
    assert "+ relu" in text


def test_a_group_of_another_framework_has_no_such_graph(
    tiny_model_repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message lists the groups that do."""
    arguments = ["graph", "tiny", "--repository", str(tiny_model_repository), "--group", "jit"]
    assert main(arguments) == 1
    assert "--group must be one of onednn, native" in capsys.readouterr().err


def test_times_are_summed_by_kind_and_names_are_escaped() -> None:
    """What the executor adds counts too; nothing in a name can break the drawing."""
    graph = Graph(
        model="a<b>@1",
        group="onednn",
        threads=1,
        before=9,
        operators=(
            Operator(
                name="onednn_op.fc", fused=("gelu",), sources=(), shape=(-1, 4), milliseconds=2.0
            ),
            Operator(name="pd_op.add", fused=(), sources=(0,), shape=(-1, 4), milliseconds=None),
            Operator(
                name="onednn_op.fc", fused=("gelu",), sources=(0, 1), shape=(), milliseconds=3.0
            ),
        ),
        added=(("pd_op.onednn_to_paddle_layout", 0.5),),
    )
    assert graph.milliseconds == 5.5
    assert graph.by_kind() == [
        ("fc + gelu", 2, 5.0),
        ("onednn_to_paddle_layout (added by the executor)", 1, 0.5),
        ("add", 1, 0.0),
    ]
    root = ElementTree.fromstring(draw(graph))
    assert len(root.findall("{*}path")) == 3
    assert "a<b>@1" in "".join(root.itertext())

"""int8 programs of ONNX files from elsewhere: whatever their names and their opset are."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from paddlepool.cli import main
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.making.programs.derive import OPSET, drift, named_graph
from paddlepool.making.programs.onnx_graph import simplified
from paddlepool.models.repository.layout import ModelFiles, ModelRepository
from tests.making.programs.test_qdq import run
from tests.model_files import add_to_config, write_config, write_manifest
from tests.ran import ROOT
from tests.tiny_onnx import model

SIDE = 32
PICTURE = ROOT / "docs" / "images" / "astronaut.jpg"
MATTE = f"""
pipeline = "segment"
default_group = "openvino"
[[instance_group]]
name = "openvino"
backend = "openvino"
[parameters]
size = {SIDE}
"""


def matte(*weights: str) -> onnx.ModelProto:
    """input.1 [1,3,32,32] to `mask` [1,1,32,32] by two convolutions with weights of these names."""
    random = np.random.default_rng(5)
    first, second = weights
    nodes = [
        helper.make_node("Conv", ["input.1", first], ["1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", second], ["3"]),
        helper.make_node("Sigmoid", ["3"], ["mask"]),
    ]
    return model(
        nodes,
        inputs={"input.1": [1, 3, SIDE, SIDE]},
        outputs={"mask": [1, 1, SIDE, SIDE]},
        constants={
            first: random.normal(size=(8, 3, 3, 3)).astype(np.float32) / 4,
            second: random.normal(size=(1, 8, 1, 1)).astype(np.float32) / 4,
        },
    )


def of_opset(network: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same file as an older exporter would write it; its operators mean the same there."""
    network.opset_import[0].version = opset
    network.ir_version = 6
    onnx.checker.check_model(network)
    return network


def published(
    root: Path, network: onnx.ModelProto, *, sample: float = 0.0, **changes: object
) -> ModelFiles:
    """`matte` 1 with this program, as `models seal` makes it; its self-test is of random numbers.

    They are from 0 to `sample`.
    """
    random = np.random.default_rng(7)
    version = root / "matte" / "1"
    version.mkdir(parents=True)
    write_config(version.parent, MATTE)
    onnx.save(network, version / "network.onnx")
    golden: dict[str, Any] = {
        "input.input.1": sample * random.random((1, 3, SIDE, SIDE), np.float32),
        "output.mask": np.zeros((1, 1, SIDE, SIDE), np.float32),
    }
    np.savez_compressed(version / "selftest.npz", tolerance=np.float64(0.1), **golden)
    specs = (
        (TensorSpec("input.1", "float32", (1, 3, SIDE, SIDE)),),
        (TensorSpec("mask", "float32", (1, 1, SIDE, SIDE)),),
    )
    program = {"format": 2, "program": "network.onnx", "params": None}
    write_manifest(version, specs, **program, **changes)
    return ModelRepository(root).read("matte", 1)


@pytest.mark.parametrize(
    "weights",
    [
        ("onnx::Conv_1", "onnx::Conv_2"),
        ("input.1.weight", "mask.weight"),
        ("conv_1.weight", "conv.weight"),
        ("Relu_0.weight", "mask"),
    ],
    ids=["numbers", "as-input-and-output", "numbered", "as-an-operator"],
)
def test_no_two_things_get_one_name(weights: tuple[str, str]) -> None:
    """Exporters call weights by numbers, and a last layer often is called like the output."""
    if "mask" in weights:
        network = matte("mask.weight", "other")
        network.graph.initializer[1].name = network.graph.node[2].input[1] = "Relu_0.weight"
    else:
        network = matte(*weights)
    x = np.random.default_rng(1).uniform(0, 1, (1, 3, SIDE, SIDE)).astype(np.float32)
    expected = run(network, x)
    clean = simplified(network, inputs=["input.1"], outputs=["mask"])
    assert len({node.name for node in clean.graph.node}) == 4
    np.testing.assert_array_equal(expected, run(clean, x))


def test_an_older_opset_is_converted(tmp_path: Path) -> None:
    """Before 13 there is no scale for each channel; most published matting networks have 11."""
    files = published(tmp_path, of_opset(matte("a.weight", "b.weight"), 11))
    graph = named_graph(files)
    assert graph.opset_import[0].version == OPSET
    assert [node.name for node in graph.graph.node] == ["a", "Relu_0", "b", "Sigmoid_0"]


def pictures(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02}.jpg").symlink_to(PICTURE)
    return folder


def test_what_cannot_be_read_is_named_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(tmp_path / "models", matte("a.weight", "b.weight"))
    data = pictures(tmp_path / "data", 12)
    (data / "00.jpg").unlink()
    (data / "00.jpg").write_text("no picture")
    arguments = ["--data", str(data), "--repository", str(tmp_path / "models")]
    assert main(["quantize", "matte", *arguments]) == 1
    printed = capsys.readouterr()
    assert f"{data / '00.jpg'}: the file is in no picture format" in printed.err
    assert printed.out == ""


def test_a_program_that_no_group_would_run_is_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers of the self-test that no picture has are out of the ranges that were measured."""
    pytest.importorskip("nncf", reason="NOT TESTED: nncf is not installed (extra quantize)")
    published(tmp_path / "models", matte("a.weight", "b.weight"), sample=-50)
    data = str(pictures(tmp_path / "data", 12))
    command = ["quantize", "matte", "--data", data, "--repository", str(tmp_path / "models")]
    assert main([*command, "--budget", "0.05"]) == 1
    error = capsys.readouterr().err
    assert "not published: on an input of the self-test, the mean difference is" in error
    assert "no group would start with more than 0.15" in error


def test_whole_numbers_differ_or_do_not() -> None:
    classes = np.array([[1, 5000, 7, 9]], np.int32)
    assert drift(np.array([[1, 2, 7, 9]], np.int32), classes) == 0.25
    assert drift(classes / 2.0, classes / 1.0) < 0.2


def test_a_sealed_network_is_quantised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the lines of config.toml that serve it; where nothing would be int8, it is refused."""
    pytest.importorskip("nncf", reason="NOT TESTED: nncf is not installed (extra quantize)")
    published(tmp_path / "models", of_opset(matte("onnx::Conv_1", "onnx::Conv_2"), 11))
    data = str(pictures(tmp_path / "data", 12))
    command = ["quantize", "matte", "--data", data, "--repository", str(tmp_path / "models")]
    assert main([*command, "--budget", "1e-9"]) == 1
    assert "not published: no layer would be int8" in capsys.readouterr().err
    assert main([*command, "--budget", "0.05"]) == 0
    printed = capsys.readouterr().out
    assert "no instance group runs it yet; add one to matte/config.toml:" in printed
    add_to_config(tmp_path / "models" / "matte", printed[printed.index("[[instance_group]]") :])
    [derived] = ModelRepository(tmp_path / "models").read("matte", 2).manifest.programs
    assert derived.derivation.float_layers == ()
    group = ModelRepository(tmp_path / "models").config("matte").group("openvino_int8")
    assert group.program == "int8"
    assert group.budget is not None
    assert group.budget.mean_difference == pytest.approx(0.15)

"""Programs that cannot be served as they are: what to do about each is said in one sentence."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from paddlepool.cli import main
from paddlepool.models.repository.manifest import read_manifest
from tests.ran import ROOT, ran
from tests.tiny_onnx import classifier

pytestmark = pytest.mark.slow
SCRIPT = "tests.making.export.old_programs"


def newer_ir() -> onnx.ModelProto:
    model = classifier()
    model.ir_version = 14
    return model


def newer_opset() -> onnx.ModelProto:
    model = classifier()
    model.opset_import[0].version = 28
    return model


def with_a_map() -> onnx.ModelProto:
    """As scikit-learn's converter writes a classifier by default."""
    scores = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", 2])
    output = helper.make_value_info("scores", helper.make_sequence_type_proto(scores))
    node = helper.make_node(
        "ZipMap", ["rows"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(
        helper.make_graph([node], "map", [rows], [output]), opset_imports=sets, ir_version=9
    )


def refused(version: Path, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Sealing fails with one line, and leaves the folder as it was."""
    before = sorted(version.iterdir())
    assert main(["models", "seal", str(version)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(advice, line)
    assert "onnxruntime::" not in line
    assert sorted(version.iterdir()) == before


@pytest.mark.parametrize(
    ("make", "options", "advice"),
    [
        (None, {}, "model.onnx is not an ONNX model"),
        (
            classifier,
            {"save_as_external_data": True, "location": "weights", "size_threshold": 0},
            "keeps 2 weights in other files; save it as one file",
        ),
        (newer_ir, {}, "max supported IR version: 13; save the model with a lower one"),
        (newer_opset, {}, "till opset 26.; export the model for a lower opset"),
        (with_a_map, {}, 'scores is a map or a sequence .* options={"zipmap": False}'),
    ],
)
def test_an_onnx_file_that_cannot_be_served(
    make: Callable[[], onnx.ModelProto] | None,
    options: dict[str, Any],
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    version = tmp_path / "model" / "1"
    version.mkdir(parents=True)
    if make is None:
        (version / "model.onnx").write_text("not a model", "utf-8")
    else:
        onnx.save(make(), version / "model.onnx", **options)
    refused(version, advice, capsys)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of programs that Paddle of the installed version does not write."""
    root = tmp_path_factory.mktemp("old")
    ran([sys.executable, "-W", "ignore", "-m", SCRIPT, root])
    return root


@pytest.mark.paddle
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("separate", "__model__ is a program of Paddle 1; docs/sealing.md converts it"),
        ("uneven", "input words is a LoD tensor"),
        ("scaled", r"scale is not right.*; a newer Paddle saved the program: give interpolate\(\)"),
        ("unchanged", "the program returns an input unchanged"),
    ],
)
def test_a_paddle_program_that_cannot_be_served(
    name: str, advice: str, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = shutil.copytree(old / name, tmp_path / "model" / "1")
    if name == "scaled":  # as Paddle 3.3 writes the factors
        program = json.loads((version / "model.json").read_text("utf-8"))
        assert program["base_code"]["version"] == 3
        program["base_code"]["version"] = 4
        text = json.dumps(program).replace('"0.a_f32"', '"0.a_f64"')
        (version / "model.json").write_text(text, "utf-8")
    refused(version, advice, capsys)


@pytest.mark.paddle
@pytest.mark.parametrize(
    ("name", "params"),
    [("separate", None), pytest.param("combined", "__params__", marks=pytest.mark.nightly)],
)
def test_a_program_of_paddle_1_is_converted_as_the_manual_says(
    name: str, params: str | None, old: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "sealing.md").read_text("utf-8")
    [recipe] = re.findall(r"^```python\n(import paddle\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    recipe = recipe.replace('"downloads/old"', repr(str(old / name)))
    recipe = recipe.replace("params = None", f"params = {params!r}")
    version = tmp_path / "model_repo" / "old" / "1"
    ran([sys.executable, "-W", "ignore", "-c", recipe], cwd=tmp_path)
    assert main(["models", "seal", str(version)]) == 0
    manifest = read_manifest(version)
    assert [spec.name for spec in manifest.inputs] == ["image"]
    assert [spec.shape for spec in manifest.outputs] == [(-1, 6)]

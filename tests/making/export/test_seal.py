"""Any Paddle model without code: exported elsewhere, sealed by a command, served over HTTP."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import httpx
import numpy as np
import onnx
import pytest
from onnx import helper

from paddlepool.cli import main
from paddlepool.contracts.ports import Predictor, PredictorSpec
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.making.export.seal import Sealed, seal
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.models.repository.manifest import read_manifest
from tests.e2e.process import running
from tests.ran import ROOT, needs_converter, ran
from tests.tiny_onnx import model as tiny_onnx

MODELS = ("centred", "doubled", "dtypes", "found", "legacy", "mixed", "single", "static_legacy")
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "int8": "INT8", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip

pytestmark = pytest.mark.paddle


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of unsealed models, with Paddle's own results beside it; read-only."""
    root = tmp_path_factory.mktemp("foreign")
    module = "tests.making.export.foreign_models"
    ran([sys.executable, "-W", "ignore", "-m", module, str(root)])
    return root


@pytest.fixture(scope="module")
def sealed(foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sealed") / "repository"
    shutil.copytree(foreign, root)
    with ThreadPoolExecutor(2) as threads:
        codes = threads.map(lambda name: main(["models", "seal", str(root / name / "1")]), MODELS)
        assert list(codes) == [0] * len(MODELS)
    return root


@pytest.fixture(scope="module")
def client(sealed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a server that serves all of them."""
    with running(sealed, tmp_path_factory.mktemp("log")) as server, server.client() as client:
        yield client


def test_inputs_and_outputs_are_read_from_the_program(sealed: Path) -> None:
    """Names, dtypes and shapes of both program forms; -1 where the size is free."""
    manifest = read_manifest(sealed / "mixed" / "1")
    assert manifest.inputs == (
        TensorSpec("tokens", "int64", (-1, -1)),
        TensorSpec("mask", "bool", (-1, -1)),
        TensorSpec("scale", "int32", (-1, 1)),
    )
    assert manifest.outputs == (
        TensorSpec("output_0", "float32", (-1, 3)),
        TensorSpec("output_1", "int64", (-1,)),
        TensorSpec("output_2", "bool", (-1, 3)),
        TensorSpec("output_3", "float64", ()),
    )
    legacy = read_manifest(sealed / "legacy" / "1")
    assert (legacy.program, legacy.params) == ("model.pdmodel", "model.pdiparams")
    assert [spec.name for spec in legacy.inputs] == ["image", "tokens"]
    static = read_manifest(sealed / "static_legacy" / "1")
    assert static.inputs == (
        TensorSpec("image", "float32", (-1, 3, 8, 8)),
        TensorSpec("extra", "float32", (-1, 4)),
    )
    assert [spec.shape for spec in static.outputs] == [(-1, 6), (-1, 2)]
    assert read_manifest(sealed / "doubled" / "1").params is None
    fixed = read_manifest(sealed / "single" / "1")
    assert fixed.inputs == (TensorSpec("rows", "float32", (1, 3)),)
    assert fixed.weights["origin"] == "foreign"


def test_only_independent_rows_are_batched(sealed: Path) -> None:
    """Requests share a run only where the rows of a batch were the same alone."""
    sizes = dict.fromkeys(("legacy", "static_legacy", "doubled", "dtypes"), "8")
    # A row for each thing found, so that there is no telling whose it is.
    sizes |= dict.fromkeys(("found", "centred"), "0")
    sizes |= dict.fromkeys(
        ("single", "mixed"), ""
    )  # a fixed batch of 1; a mean over the whole batch
    texts = {name: (sealed / name / "config.toml").read_text("utf-8") for name in MODELS}
    assert {
        name: "".join(re.findall(r"max_batch_size = (\d+)", text)) for name, text in texts.items()
    } == sizes


@pytest.mark.parametrize(
    ("rows", "reason"), [(-1, "an output is a scalar"), (2, "the first axis of an input is fixed")]
)
def test_the_output_says_why_rows_are_none(rows: int, reason: str) -> None:
    result = Sealed(
        inputs=(TensorSpec("x", "float32", (rows, 4)),),
        outputs=(),
        trial=Mock(independent=None),
        groups=(),
        config="",
        unused=(),
    )
    assert result.rows == f"none: {reason}"


def test_no_group_of_an_ordinary_program_is_refused(sealed: Path) -> None:
    """In either form: the file of a legacy program is read beside Paddle's core."""
    for name in ("legacy", "static_legacy", "doubled"):
        text = (sealed / name / "config.toml").read_text("utf-8")
        assert text.index('name = "onednn"') < text.index('name = "native"')
        assert "onednn is left out" not in text


def test_outputs_over_http_equal_paddle_s_own(sealed: Path, client: httpx.Client) -> None:
    """Within 1e-5 of the largest value, for every dtype; /v2 describes what must be sent."""
    assert client.get("/v2/health/ready").status_code == 200, client.get("/info").text
    for name in MODELS:
        with np.load(sealed / f"{name}.npz") as archive:
            kept = {key: archive[key] for key in archive.files}
        feeds = {key[6:]: array for key, array in kept.items() if key.startswith("input.")}
        described = client.get(f"/v2/models/{name}").json()["inputs"]
        assert [tensor["name"] for tensor in described] == list(feeds)
        outputs = infer(client, name, feeds)
        assert len(outputs) == len(kept) - len(feeds)
        for index, found in enumerate(outputs):
            expected = kept[f"output.{index}"]
            assert found.shape == expected.shape
            allowed = 1e-5 * max(1.0, float(np.abs(expected.astype(np.float64)).max()))
            np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


def test_ids_outside_a_table_are_refused(sealed: Path, client: httpx.Client) -> None:
    """Paddle does not check those of every embedding."""
    with np.load(sealed / "mixed" / "1" / "selftest.npz") as golden:
        assert golden["input.tokens"].max() == 7
    tokens = {"name": "tokens", "datatype": "INT64", "shape": [1, 2]}
    mask = {"name": "mask", "datatype": "BOOL", "shape": [1, 2], "data": [True, True]}
    scale = {"name": "scale", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    for group in ModelRepository(sealed).read("mixed", 1).config.instance_group:
        for wrong in (8, -1):
            body = {
                "inputs": [tokens | {"data": [7, wrong]}, mask, scale],
                "parameters": {"predictor": group.name},
            }
            response = client.post("/v2/models/mixed/infer", json=body)
            assert response.status_code == 400, group.name
            assert f"tokens takes ids from 0 to 7, received {wrong}" in response.json()["error"]


def test_every_dtype_is_served_and_documented(sealed: Path) -> None:
    manifest = read_manifest(sealed / "dtypes" / "1")
    assert list(DATATYPES) == [spec.dtype for spec in manifest.inputs]
    assert list(DATATYPES) == [spec.dtype for spec in manifest.outputs]
    protocol = " ".join((ROOT / "docs" / "protocol.md").read_text("utf-8").split())
    assert f"Datatypes: {', '.join(DATATYPES.values())}, and BYTES for" in protocol


@pytest.mark.parametrize("backend", ["paddle_jit", pytest.param("openvino", marks=needs_converter)])
def test_other_frameworks_run_a_program_without_parameters(sealed: Path, backend: str) -> None:
    files = ModelRepository(sealed).read("doubled", 1)
    rows = np.array([[1, 2, 3]], np.float32)
    spec = files.spec(InstanceGroup(name="other", backend=backend))
    with closing(ProcessBackend()(spec)) as predictor:
        found = predictor.run({"rows": rows}, timeout=60)
    np.testing.assert_allclose(found["output_0"], rows * 2 + 1, rtol=1e-6)  # type: ignore[arg-type]


def test_an_output_may_be_empty(
    sealed: Path, client: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sealed, verified and served: nothing found is an answer, and is the golden one here."""
    with np.load(sealed / "found" / "1" / "selftest.npz") as golden:
        assert golden["output.output_0"].shape == (0, 2)
    assert main(["models", "verify", "--run", "found", "--repository", str(sealed)]) == 0
    assert "ok, self-test passed" in capsys.readouterr().out
    where, rows = infer(client, "found", {"rows": np.ones((3, 2), np.float32)})
    assert (where.shape, rows.shape) == ((0, 2), (3, 2))


def infer(client: httpx.Client, model: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of one JSON request."""
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES[array.dtype.name],
            "shape": array.shape,
            "data": array.tolist(),
        }
        for name, array in feeds.items()
    ]
    response = client.post(f"/v2/models/{model}/infer", json={"inputs": inputs})
    assert response.status_code == 200, response.text
    return [
        np.array(output["data"]).reshape(output["shape"]) for output in response.json()["outputs"]
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bfloat16", "output output_0 is bfloat16, which Paddle Inference cannot pass through; "),
        ("int16", "input rows is int16, which Paddle Inference cannot pass through; served are "),
        ("nan", "key 'D' not found; a constant of the program is not a number (NaN), which "),
        ("constant", "the program has 0 inputs and 1 outputs, needed is at least one of each"),
    ],
)
def test_a_program_that_nobody_could_ask_is_refused(
    name: str, message: str, foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what it declares: bfloat16 would come out as float32, and as garbage."""
    version = copy_of(foreign / ".unfit", tmp_path, name)
    before = set(tmp_path.rglob("*"))
    assert message in refusal(version, capsys)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("model", "program"), [("legacy", "model.pdmodel"), ("centred", "inference.json")]
)
def test_parameters_that_are_missing_are_told_from_none(
    model: str, program: str, foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paddle would run a .json without them, on whatever lies in memory."""
    version = copy_of(foreign, tmp_path, model)
    params = (version / program).with_suffix(".pdiparams")
    params.unlink()
    (version / "tokenizer.json").write_text("{}", "utf-8")  # is no program
    assert f"{program} has parameters, and {params.name} is missing" in refusal(version, capsys)


def copy_of(foreign: Path, tmp_path: Path, model: str = "legacy") -> Path:
    return shutil.copytree(foreign / model, tmp_path / model) / "1"


def refusal(version: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["models", "seal", str(version)]) == 1
    assert not (version.parent / f".{version.name}-manifest.json").exists()
    return capsys.readouterr().err


def test_a_folder_as_downloaded_is_sealed(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nothing opens is named and ignored, then and by the server; the rest is verified."""
    version = shutil.copytree(foreign / "doubled", tmp_path / "PP-Doubled_v1.0") / "1"
    (version / ".cache" / "download").mkdir(parents=True)
    for name in (".gitattributes", "README.md", "LICENSE", "model.pdiparams.info", "a b.txt"):
        (version / name).write_bytes(b"?")
    (version / "inference.yml").write_text("Global: {}", "utf-8")
    assert main(["models", "seal", str(version)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "ignored: .cache/, .gitattributes, LICENSE, README.md, a b.txt, model.pdiparams.info"
    ) in said
    files = ModelRepository(tmp_path).read("PP-Doubled_v1.0", 1)
    assert set(files.manifest.files) == {"inference.yml", "model.json", "selftest.npz"}
    spec = files.spec(InstanceGroup(name="jit", backend="paddle_jit"))
    with closing(ProcessBackend()(spec)) as predictor:
        files.selftest().check(predictor, timeout=60)


def doubled_onnx(path: Path, *, name: str = "rows", plus: float = 1.0) -> None:
    nodes = [
        helper.make_node("Mul", [name, "two"], ["twice"]),
        helper.make_node("Add", ["twice", "one"], ["y"]),
    ]
    constants = {"two": np.array([2], np.float32), "one": np.array([plus], np.float32)}
    sizes: list[int | str] = ["N", 3]
    onnx.save(
        tiny_onnx(nodes, inputs={name: sizes}, outputs={"y": sizes}, constants=constants), path
    )


def test_a_version_may_bring_its_own_onnx(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime and OpenVINO run it in place of a converted one; it must compute the same."""
    version = copy_of(foreign, tmp_path, "doubled")
    doubled_onnx(version / "own.onnx", name="x")
    said = "its inputs are x float32 [-1, 3], those of model.json rows float32"
    assert said in refusal(version, capsys)
    doubled_onnx(version / "own.onnx", plus=1.5)
    assert main(["models", "seal", str(version)]) == 0
    config = version.parent / "config.toml"
    assert "# onnxruntime is left out: self-test: output 'output_0' has" in config.read_text(
        "utf-8"
    )
    for written in (config, version / "manifest.json"):
        written.unlink()
    doubled_onnx(version / "own.onnx")
    assert main(["models", "seal", str(version)]) == 0
    assert 'name = "onnxruntime"' in config.read_text("utf-8")
    files = ModelRepository(tmp_path).read("doubled", 1)
    for backend, program in (("onnxruntime", "own.onnx"), ("paddle_inference", "model.json")):
        spec = files.spec(InstanceGroup(name="a", backend=backend))
        assert spec.program == program
        with closing(ProcessBackend()(spec)) as predictor:
            files.selftest().check(predictor, timeout=60)


def test_an_interrupted_sealing_leaves_nothing(foreign: Path, tmp_path: Path) -> None:
    version = copy_of(foreign, tmp_path, "doubled")
    before = set(tmp_path.rglob("*"))

    def opening(spec: PredictorSpec) -> Predictor:
        (version / "manifest.json").mkdir(exist_ok=True)  # so that it cannot be written
        return ProcessBackend()(spec)

    with pytest.raises(OSError, match="directory"):
        seal(version, open_predictor=opening)  # type: ignore[arg-type]
    (version / "manifest.json").rmdir()
    assert set(tmp_path.rglob("*")) == before


def test_what_cannot_be_sealed_is_named(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = copy_of(foreign, tmp_path)
    assert "MODEL/VERSION" in refusal(version.parent, capsys)
    params = (version / "model.pdiparams").read_bytes()
    (version.parent / "2").mkdir()
    (version / "own.onnx").touch()
    (version / "another.onnx").touch()
    assert "found 3: model.pdmodel, another.onnx, own.onnx" in refusal(version, capsys)
    (version / "another.onnx").unlink()
    (version / "own.onnx").unlink()
    assert "found 0: none" in refusal(version.parent / "2", capsys)
    (version / "model.pdiparams").write_bytes(params[:100])
    assert "Paddle cannot load model" in refusal(version, capsys)
    assert not (version / "manifest.json").exists()
    (version / "model.pdiparams").write_bytes(params)
    for suffix in (".pdmodel", ".pdiparams"):
        shutil.copy(version / f"model{suffix}", version / f"other{suffix}")
    assert "found 2: model.pdmodel, other.pdmodel" in refusal(version, capsys)
    for suffix in (".pdmodel", ".pdiparams"):
        (version / f"other{suffix}").unlink()
    (version / "other.pdiparams").symlink_to(version / "model.pdiparams")
    assert "other.pdiparams is a link" in refusal(version, capsys)
    (version / "other.pdiparams").unlink()
    assert main(["models", "seal", str(version), "--licence", "MIT"]) == 0
    assert json.loads((version / "manifest.json").read_text("utf-8"))["weights"]["licence"] == "MIT"
    capsys.readouterr()
    assert "sealed already" in refusal(version, capsys)

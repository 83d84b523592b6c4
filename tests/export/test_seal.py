"""Any Paddle model without code: exported elsewhere, sealed by a command, served over HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cli import main
from app.engine.manifest import read_manifest
from app.engine.tensors import TensorSpec
from tests.e2e.process import running

ROOT = Path(__file__).parents[2]
MODELS = ("centred", "legacy", "mixed", "mobilenet_v3_small", "resnet18")
DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "bool": "BOOL"}

pytestmark = pytest.mark.paddle


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of unsealed models, with Paddle's own results beside it; read-only."""
    root = tmp_path_factory.mktemp("foreign")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.export.foreign_models", str(root)],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    return root


@pytest.fixture(scope="module")
def sealed(foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sealed") / "repository"
    shutil.copytree(foreign, root)
    with ThreadPoolExecutor(2) as threads:
        codes = threads.map(lambda name: main(["models", "seal", str(root / name / "1")]), MODELS)
        assert list(codes) == [0] * len(MODELS)
    return root


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
    fixed = read_manifest(sealed / "mobilenet_v3_small" / "1")
    assert fixed.inputs == (TensorSpec("image", "float32", (1, 3, 64, 64)),)
    assert fixed.weights["origin"] == "foreign"


def test_only_independent_rows_are_batched(sealed: Path) -> None:
    """A config.toml is written where rows may share a run, and only there."""
    assert "max_batch_size = 8" in (sealed / "resnet18" / "config.toml").read_text("utf-8")
    assert "max_batch_size = 8" in (sealed / "legacy" / "config.toml").read_text("utf-8")
    assert "max_batch_size = 0" in (sealed / "centred" / "config.toml").read_text("utf-8")
    assert not (sealed / "mobilenet_v3_small" / "config.toml").exists()  # a fixed batch of 1
    assert not (sealed / "mixed" / "config.toml").exists()  # its mean is over the whole batch


def test_outputs_over_http_equal_paddle_s_own(sealed: Path, tmp_path: Path) -> None:
    """Within 1e-5 of the largest value, for every dtype; /v2 describes what must be sent."""
    with running(sealed, tmp_path) as server, server.client() as client:
        server.wait_loaded()
        assert client.get("/v2/health/ready").status_code == 200, client.get("/info").text
        for name in MODELS:
            with np.load(sealed / f"{name}.npz") as archive:
                kept = {key: archive[key] for key in archive.files}
            feeds = {key[6:]: array for key, array in kept.items() if key.startswith("input.")}
            described = client.get(f"/v2/models/{name}").json()["inputs"]
            assert [each["name"] for each in described] == list(feeds)
            outputs = infer(client, name, feeds)
            assert len(outputs) == len(kept) - len(feeds)
            for index, found in enumerate(outputs):
                expected = kept[f"output.{index}"]
                assert found.shape == expected.shape
                allowed = 1e-5 * max(1.0, float(np.abs(expected.astype(np.float64)).max()))
                np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


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


def test_an_unsealed_version_is_told_apart(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`models verify` fails and says what to do."""
    assert main(["models", "verify", "resnet18", "--repository", str(foreign)]) == 1
    assert "no manifest.json: `paddlepool models seal` writes it" in capsys.readouterr().out


def copy_of(foreign: Path, tmp_path: Path, model: str = "legacy") -> Path:
    shutil.copytree(foreign / model, tmp_path / model)
    return tmp_path / model / "1"


def refusal(version: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["models", "seal", str(version)]) == 1
    assert not (version.parent / f".{version.name}-manifest.json").exists()
    return capsys.readouterr().err


def test_what_cannot_be_sealed_is_named(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No program, two programs, a wrong name, a damaged program, a second time."""
    version = copy_of(foreign, tmp_path)
    assert "MODEL/VERSION" in refusal(version.parent, capsys)
    params = (version / "model.pdiparams").read_bytes()
    (version / "model.pdiparams").unlink()
    assert "found 0: none" in refusal(version, capsys)
    (version / "model.pdiparams").write_bytes(params[:100])
    assert "Paddle cannot load model" in refusal(version, capsys)
    assert not (version / "manifest.json").exists()
    (version / "model.pdiparams").write_bytes(params)
    for suffix in (".pdmodel", ".pdiparams"):
        shutil.copy(version / f"model{suffix}", version / f"other{suffix}")
    assert "found 2: model.pdmodel, other.pdmodel" in refusal(version, capsys)
    for suffix in (".pdmodel", ".pdiparams"):
        (version / f"other{suffix}").unlink()
    assert main(["models", "seal", str(version), "--licence", "MIT"]) == 0
    assert json.loads((version / "manifest.json").read_text("utf-8"))["weights"]["licence"] == "MIT"
    capsys.readouterr()
    assert "sealed already" in refusal(version, capsys)

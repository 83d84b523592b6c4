"""Any ONNX network is a directory and no code: sealed by a command, configured, served."""

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from paddlepool.cli import main
from tests.e2e.process import running
from tests.tiny_onnx import brightness_matte, classifier

SIDE = 1024
MATTE = f"""\
pipeline = "segment"
default_group = "onnxruntime"
[[instance_group]]
name = "onnxruntime"
backend = "onnxruntime"
[[instance_group]]
name = "openvino"
backend = "openvino"
start = "on_demand"
[parameters]
size = {SIDE}
mean = [0.5, 0.5, 0.5]
std = [1.0, 1.0, 1.0]
output = "fine"
"""

pytestmark = pytest.mark.slow


def unsealed(root: Path, name: str, program: onnx.ModelProto) -> Path:
    version = root / name / "1"
    version.mkdir(parents=True)
    onnx.save(program, version / "network.onnx")
    return version


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matting network with a config.toml of its own, and a classifier without one."""
    root = tmp_path_factory.mktemp("repository")
    matte = unsealed(root, "matte", brightness_matte(SIDE))
    (matte.parent / "config.toml").write_text(MATTE, "utf-8")
    for version in (matte, unsealed(root, "classifier", classifier())):
        assert main(["models", "seal", str(version)]) == 0
    with (root / "classifier" / "config.toml").open("a", encoding="utf-8") as config:
        config.write('[outputs]\nscores = "sizes"\n')
    return root


def test_named_outputs_are_checked_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = unsealed(tmp_path, "classifier", classifier())
    config = version.parent / "config.toml"
    text = 'default_group = "o"\n[[instance_group]]\nname = "o"\nbackend = "onnxruntime"\n'
    config.write_text(f'{text}[outputs]\nscore = "sizes"\n', "utf-8")
    assert main(["models", "seal", str(version)]) == 1
    assert "names the output 'score', the program has scores" in capsys.readouterr().err
    config.write_text(f'{text}[outputs]\nscores = "sizes"\n', "utf-8")
    assert main(["models", "seal", str(version)]) == 0
    assert "output  sizes" in capsys.readouterr().out


def test_a_configuration_that_can_run_it_is_written(sealed: Path) -> None:
    text = (sealed / "classifier" / "config.toml").read_text("utf-8")
    assert 'default_group = "auto"' in text
    assert text.index('name = "onnxruntime"') < text.index('name = "openvino"')
    assert "max_batch_size = 8" in text
    assert main(["models", "verify", "--run", "--repository", str(sealed)]) == 0


@pytest.mark.e2e
def test_a_matting_network_of_another_shape_is_served(sealed: Path, tmp_path: Path) -> None:
    """1024 pixels, other mean and std, the second output: all of it from config.toml."""
    picture = np.full((60, 80, 3), 20, np.uint8)
    picture[10:50, 30:70] = 250
    body = io.BytesIO()
    Image.fromarray(picture).save(body, "PNG")
    options = {"output": "mask", "refine": "none", "timeout_ms": "30000"}
    with running(sealed, tmp_path) as server, server.client() as client:
        for group in ("onnxruntime", "openvino"):
            reply = client.post(  # the second group starts with its first request
                "/segment",
                params=options | {"predictor": group},
                content=body.getvalue(),
                headers={"content-type": "image/png"},
            )
            assert reply.status_code == 200, reply.text
            mask = np.asarray(Image.open(io.BytesIO(reply.content)))
            assert mask.shape == (60, 80)
            assert mask[12:48, 32:68].min() > 250
            assert max(mask[:8].max(), mask[:, :28].max()) < 5
        rows = [[0.0, 0.0, 0.0, 0.0]] * 2
        tensor = {"name": "rows", "datatype": "FP32", "shape": [2, 4], "data": rows}
        answer = client.post("/v2/models/classifier/infer", json={"inputs": [tensor]})
        assert answer.json()["outputs"][0]["data"] == [0.5, 0.0, -0.5] * 2
        assert answer.json()["outputs"][0]["name"] == "sizes"
        metadata = client.get("/v2/models/classifier").json()
        assert [output["name"] for output in metadata["outputs"]] == ["sizes"]
        assert metadata["platform"] == "onnxruntime_onnx"

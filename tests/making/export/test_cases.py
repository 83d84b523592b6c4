"""Programs that look harmless: sealed and answered right, or refused in words; no request kills.

Copies of the smallest programs that were once answered wrongly, and a few more of their kind.
"""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import helper

from paddlepool.cli import main
from paddlepool.models.repository.manifest import read_manifest
from tests.e2e.process import running
from tests.ran import ROOT
from tests.tiny_onnx import model as tiny_onnx

CASES = ROOT.parent / "shared" / "cases"
SERVED = ("freet", "norankout", "passed", "unused")

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.e2e,
    pytest.mark.skipif(not CASES.exists(), reason=f"NOT TESTED: no programs at {CASES}"),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of SERVED, sealed anew."""
    root = tmp_path_factory.mktemp("cases")
    for name in ("freet", "norankout"):
        (root / name / "1").mkdir(parents=True)
        shutil.copy(CASES / name / "1" / "m.onnx", root / name / "1" / "m.onnx")
    sizes: list[int | str] = ["N", 2]
    twice = helper.make_node("Add", ["x", "x"], ["y"])
    for name, inputs, outputs in (
        ("passed", {"x": sizes}, {"x": sizes, "y": sizes}),
        ("unused", {"x": sizes, "unused": sizes}, {"y": sizes}),
    ):
        (root / name / "1").mkdir(parents=True)
        made = tiny_onnx([twice], inputs=inputs, outputs=outputs, constants={})
        onnx.save(made, root / name / "1" / "m.onnx")
    for name in SERVED:
        assert main(["models", "seal", str(root / name / "1")]) == 0
    return root


@pytest.fixture(scope="module")
def client(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(repository, tmp_path_factory.mktemp("log")) as server, server.client() as client:
        yield client


@pytest.mark.parametrize("group", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", SERVED)
def test_every_size_is_answered(client: httpx.Client, name: str, group: str) -> None:
    """Outputs of an undeclared rank or a free second axis; an input returned or not used."""
    for size in (1, 5, 33):
        shape = {"freet": (1, size), "norankout": (size, 4)}.get(name, (size, 2))
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        expected = {"y": x @ np.ones((4, 2), np.float32) if name == "norankout" else 2 * x}
        given = {"x": x} | ({"unused": x} if name == "unused" else {})
        expected |= {"x": x} if name == "passed" else {}
        inputs = [
            {"name": key, "datatype": "FP32", "shape": shape, "data": array.ravel().tolist()}
            for key, array in given.items()
        ]
        document = {"inputs": inputs, "parameters": {"predictor": group, "timeout": 30_000_000}}
        reply = client.post(f"/v2/models/{name}/infer", json=document)
        assert reply.status_code == 200, reply.text
        for output in reply.json()["outputs"]:
            found = np.array(output["data"], np.float32).reshape(output["shape"])
            np.testing.assert_allclose(found, expected[output["name"]], rtol=1e-6)
    metrics = client.get("/metrics").text
    restarts = [line for line in metrics.splitlines() if "predictor_restarts_total{" in line]
    assert restarts
    assert all(line.endswith(" 0.0") for line in restarts)


def test_what_a_manifest_does_not_expect_kills_nothing(tmp_path: Path) -> None:
    """Versions that were sealed when one shape was tried: 500 and a line in the log."""
    for name in ("freet", "norankout"):
        shutil.copytree(CASES / name, tmp_path / name)
    with running(tmp_path, tmp_path) as server, server.client() as client:
        for name, shape in (("freet", [1, 7]), ("norankout", [3, 4])):
            tensor = {
                "name": "x",
                "datatype": "FP32",
                "shape": shape,
                "data": [1] * math.prod(shape),
            }
            for _ in range(3):
                reply = client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
                assert reply.status_code == 500
                assert "its manifest expects" in reply.json()["error"]
        assert 'reason="corrupt"} 1.0' not in client.get("/metrics").text


def test_the_network_of_ones_cuts_nothing_away(tmp_path: Path) -> None:
    """A mask that is 1 everywhere, for /segment, with a configuration of its own."""
    shutil.copytree(CASES / "ones", tmp_path / "ones")
    assert read_manifest(tmp_path / "ones" / "1").outputs[0].shape == (-1, 1, 16, 16)
    picture = (CASES / "astro_black.png").read_bytes()
    with running(tmp_path, tmp_path) as server, server.client() as client:
        reply = client.post(
            "/segment",
            params={"output": "mask", "refine": "none", "timeout_ms": "30000"},
            content=picture,
            headers={"content-type": "image/png"},
        )
        assert reply.status_code == 200, reply.text

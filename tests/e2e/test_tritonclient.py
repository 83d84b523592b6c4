"""Triton's own HTTP clients, unchanged, against a real server: all that they can ask of a model."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.process import Server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent and its kin, while they are imported
    triton = pytest.importorskip("tritonclient.http")

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]
IMAGE = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)


@pytest.fixture
def client(protocol_server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{protocol_server.port}", concurrency=4) as client:
        yield client


@pytest.fixture(scope="module")
def golden(tiny_model_repository: Path) -> dict[str, np.ndarray]:
    with np.load(tiny_model_repository / "tiny" / "1" / "selftest.npz") as archive:
        return {name: archive[f"output.{name}"] for name in ("scores", "mean")}


def image(array: np.ndarray = IMAGE, *, binary: bool = True, datatype: str = "FP32") -> Any:
    tensor = triton.InferInput("image", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def test_configuration_and_statistics(client: Any) -> None:
    config = client.get_model_config("tiny")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [3, -1, -1])
    before = client.get_inference_statistics("tiny")["model_stats"][0]
    client.infer("tiny", [image()])
    after = client.get_inference_statistics("tiny", "1")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 2
    assert after["execution_count"] - before["execution_count"] == 1
    everything = client.get_inference_statistics()["model_stats"]
    assert {"emotion", "tiny"} <= {each["name"] for each in everything}


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("binary_out", [True, False], ids=["binary-out", "json-out"])
def test_infer(
    client: Any, golden: dict[str, np.ndarray], binary_in: bool, binary_out: bool
) -> None:
    outputs = [triton.InferRequestedOutput(n, binary_data=binary_out) for n in ("mean", "scores")]
    gzip = "gzip" if binary_out else None
    result = client.infer(
        "tiny",
        [image(binary=binary_in)],
        outputs=outputs,
        request_id="7",
        request_compression_algorithm=gzip,
        response_compression_algorithm=gzip,
    )
    assert result.get_response()["id"] == "7"
    assert [output["name"] for output in result.get_response()["outputs"]] == ["mean", "scores"]
    for name, expected in golden.items():
        np.testing.assert_allclose(result.as_numpy(name), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "tensor", "options", "status", "words"),
    [
        ("nobody", lambda: image(), {}, "404", "no model"),
        ("tiny", lambda: image(), {"model_version": "9"}, "404", "no model"),
        ("tiny", lambda: image(IMAGE[:, :2]), {}, "400", "shape"),
        ("tiny", lambda: image(), {"request_compression_algorithm": "deflate"}, "415", "identity"),
    ],
    ids=["model", "version", "shape", "deflate"],
)
def test_errors_reach_the_caller(
    client: Any, model: str, tensor: Any, options: dict[str, Any], status: str, words: str
) -> None:
    with pytest.raises(triton.InferenceServerException, match=words) as caught:
        client.infer(model, [tensor()], **options)
    assert caught.value.status() == status
    assert client.is_model_ready("tiny")

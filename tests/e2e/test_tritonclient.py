"""Triton's own HTTP clients, unchanged, against a real server: all that they can ask of a model,
and of a whole task as a model."""

import io
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.e2e.process import Server
from tests.tasks.codecs.pictures import encoded, photo

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent and its kin, while they are imported
    triton = pytest.importorskip("tritonclient.http")

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]
IMAGE = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)
TEXTS = ["今天收到了大学的录取通知书，太开心了！", "我很难过。"]
KEY = {"X-Api-Key": "admin"}


@pytest.fixture
def client(full_server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{full_server.port}", concurrency=4) as client:
        yield client


def image(*, binary: bool = True) -> Any:
    tensor = triton.InferInput("image", list(IMAGE.shape), "FP32")
    tensor.set_data_from_numpy(IMAGE, binary_data=binary)
    return tensor


def strings(name: str, *items: bytes, binary: bool = True) -> Any:
    tensor = triton.InferInput(name, [len(items)], "BYTES")
    tensor.set_data_from_numpy(np.array(items, object), binary_data=binary)
    return tensor


def picture(width: int = 64, height: int = 48) -> bytes:
    return encoded(photo(width, height), "PNG")


def test_infer(client: Any, tiny_model_repository: Path) -> None:
    with np.load(tiny_model_repository / "tiny" / "1" / "selftest.npz") as archive:
        golden = {name: archive[f"output.{name}"] for name in ("scores", "mean")}
    for binary_in, binary_out in product((True, False), repeat=2):
        gzip = "gzip" if binary_out else None
        result = client.infer(
            "tiny",
            [image(binary=binary_in)],
            outputs=[
                triton.InferRequestedOutput(n, binary_data=binary_out) for n in ("mean", "scores")
            ],
            request_id="7",
            request_compression_algorithm=gzip,
            response_compression_algorithm=gzip,
        )
        assert result.get_response()["id"] == "7"
        assert [item["name"] for item in result.get_response()["outputs"]] == ["mean", "scores"]
        for name, expected in golden.items():
            np.testing.assert_allclose(result.as_numpy(name), expected, atol=1e-4)


def test_a_picture_is_cut_out(client: Any, full_server: Server) -> None:
    result = client.infer("segment", [strings("image", picture())])
    with full_server.client() as http:
        response = http.post("/segment", content=picture(), headers={"Content-Type": "image/png"})
    assert result.as_numpy("image").tolist() == [response.content]
    assert result.as_numpy("size").tolist() == [64, 48]
    box = [
        int(response.headers[f"x-foreground-{name}"]) for name in ("top", "left", "width", "height")
    ]
    assert result.as_numpy("foreground_box").tolist() == box
    assert 0 <= result.as_numpy("confidence")[0] <= 1
    assert result.get_response()["model_name"] == "segment"
    inputs = [strings("image", picture()), strings("bg_image", picture(32, 24))]
    outputs = [triton.InferRequestedOutput("image")]
    mask = {"output": "mask", "crop": False, "threshold": 0.5, "model": "u2netp"}
    for tensors, options, form in (
        (inputs[:1], mask, ("PNG", "L", (64, 48))),
        (inputs, {"output": "composite", "format": "jpg"}, ("JPEG", "RGB", (64, 48))),
    ):
        result = client.infer("segment", tensors, outputs=outputs, parameters=options)
        with Image.open(io.BytesIO(result.as_numpy("image")[0])) as opened:
            assert (opened.format, opened.mode, opened.size) == form
        assert result.as_numpy("size") is None


@pytest.mark.parametrize("binary", [True, False], ids=["raw", "json"])
def test_texts_are_classified(client: Any, full_server: Server, binary: bool) -> None:
    texts = [text.encode() for text in TEXTS]
    names = ("labels", "labels_zh", "scores", "tokens", "truncated")
    result = client.infer(
        "sentiment",
        [strings("text", *texts, binary=binary)],
        outputs=[triton.InferRequestedOutput(name, binary_data=binary) for name in names],
        parameters={"top_k": 2},
    )
    with full_server.client() as http:
        expected = http.post(
            "/sentiment", json={"inputs": TEXTS, "parameters": {"top_k": 2, "tokens": True}}
        ).json()
    labels = np.array(result.as_numpy("labels"), str if not binary else object).tolist()
    decoded = [[item.decode() if binary else item for item in row] for row in labels]
    assert decoded == [[score["label"] for score in text["scores"]] for text in expected]
    scores = [[score["score"] for score in text["scores"]] for text in expected]
    np.testing.assert_allclose(result.as_numpy("scores"), scores, atol=1e-5)
    assert result.as_numpy("tokens").tolist() == [text["tokens"] for text in expected]
    assert result.as_numpy("truncated").tolist() == [False, False]


def test_what_a_client_asks_of_a_task_first(client: Any) -> None:
    for name, inputs in (("segment", ["image", "bg_image"]), ("sentiment", ["text"])):
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, "1")
        assert not client.is_model_ready(name, "2")
        metadata = client.get_model_metadata(name)
        assert [entry["name"] for entry in metadata["inputs"]] == inputs
        assert metadata["inputs"][0]["datatype"] == "BYTES"
        config = client.get_model_config(name)
        assert config["platform"] == "ensemble"
        assert config["input"][0]["data_type"] == "TYPE_STRING"
        [stats] = client.get_inference_statistics(name)["model_stats"]
        assert stats["name"] == name
        index = client.get_model_repository_index(headers=KEY)
        assert [e["state"] for e in index if e["name"] == name] == ["READY"]

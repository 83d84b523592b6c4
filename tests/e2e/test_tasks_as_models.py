"""A whole task as a model of the protocol, with Triton's own client against a real server."""

import io
import warnings
from collections.abc import Iterator
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
TEXTS = ["今天收到了大学的录取通知书，太开心了！", "我很难过。"]
KEY = {"X-Api-Key": "admin"}


@pytest.fixture
def client(protocol_server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{protocol_server.port}") as client:
        yield client


def strings(name: str, *items: bytes, binary: bool = True) -> Any:
    tensor = triton.InferInput(name, [len(items)], "BYTES")
    tensor.set_data_from_numpy(np.array(items, object), binary_data=binary)
    return tensor


def picture(width: int = 64, height: int = 48) -> bytes:
    return encoded(photo(width, height), "PNG")


def test_a_picture_is_cut_out(client: Any, protocol_server: Server) -> None:
    result = client.infer("segment", [strings("image", picture())])
    with protocol_server.client() as http:
        response = http.post("/segment", content=picture(), headers={"Content-Type": "image/png"})
    assert result.as_numpy("image").tolist() == [response.content]
    assert result.as_numpy("size").tolist() == [64, 48]
    box = [
        int(response.headers[f"x-foreground-{name}"]) for name in ("top", "left", "width", "height")
    ]
    assert result.as_numpy("foreground_box").tolist() == box
    assert 0 <= result.as_numpy("confidence")[0] <= 1
    assert result.get_response()["model_name"] == "segment"


def test_the_tasks_parameters(client: Any) -> None:
    outputs = [triton.InferRequestedOutput("image")]
    options = {"output": "mask", "crop": False, "threshold": 0.5, "model": "u2netp"}
    result = client.infer(
        "segment", [strings("image", picture())], outputs=outputs, parameters=options
    )
    mask = Image.open(io.BytesIO(result.as_numpy("image")[0]))
    assert (mask.format, mask.mode, mask.size) == ("PNG", "L", (64, 48))
    assert result.as_numpy("size") is None
    inputs = [strings("image", picture()), strings("bg_image", picture(32, 24))]
    options = {"output": "composite", "format": "jpg"}
    result = client.infer("segment", inputs, outputs=outputs, parameters=options)
    composite = Image.open(io.BytesIO(result.as_numpy("image")[0]))
    assert (composite.format, composite.size) == ("JPEG", (64, 48))


@pytest.mark.parametrize("binary", [True, False], ids=["raw", "json"])
def test_texts_are_classified(client: Any, protocol_server: Server, binary: bool) -> None:
    texts = [text.encode() for text in TEXTS]
    names = ("labels", "labels_zh", "scores", "tokens", "truncated")
    result = client.infer(
        "sentiment",
        [strings("text", *texts, binary=binary)],
        outputs=[triton.InferRequestedOutput(name, binary_data=binary) for name in names],
        parameters={"top_k": 2},
    )
    with protocol_server.client() as http:
        expected = http.post(
            "/sentiment", json={"inputs": TEXTS, "parameters": {"top_k": 2, "tokens": True}}
        ).json()
    labels = np.array(result.as_numpy("labels"), str if not binary else object).tolist()
    decoded = [[each.decode() if binary else each for each in row] for row in labels]
    assert decoded == [[score["label"] for score in text["scores"]] for text in expected]
    scores = [[score["score"] for score in text["scores"]] for text in expected]
    np.testing.assert_allclose(result.as_numpy("scores"), scores, atol=1e-5)
    assert result.as_numpy("tokens").tolist() == [text["tokens"] for text in expected]
    assert result.as_numpy("truncated").tolist() == [False, False]


def test_what_a_client_asks_first(client: Any) -> None:
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


REFUSED: dict[str, tuple[str, list[Any], dict[str, Any], str, str]] = {
    "no picture": ("segment", [strings("image", b"no picture")], {}, "415", "in no picture format"),
    "too large": ("segment", [strings("image", picture() + b"\0" * 200_000)], {}, "413", "200000"),
    "many": ("sentiment", [strings("text", *[b"a"] * 33)], {}, "422", "limit is 32"),
    "deadline": ("sentiment", [strings("text", b"a")], {"timeout": 1}, "504", "deadline"),
}


@pytest.mark.parametrize(
    ("model", "inputs", "options", "status", "words"), REFUSED.values(), ids=REFUSED
)
def test_refusals_are_the_tasks_own(
    client: Any, model: str, inputs: list[Any], options: dict[str, Any], status: str, words: str
) -> None:
    with pytest.raises(triton.InferenceServerException, match=words) as caught:
        client.infer(model, inputs, **options)
    assert caught.value.status() == status

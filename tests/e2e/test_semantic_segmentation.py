"""A model in PaddleSeg's form, exported by Paddle, answers every segmentation API."""

import base64
import io
import sys
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.e2e.process import running
from tests.ran import ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

COLOURS = [(0, 0, 0), (200, 0, 0), (0, 200, 0), (0, 0, 200)]
EXPECTED = np.repeat(np.repeat([[0, 1], [2, 3]], 48, axis=0), 80, axis=1)
"""The label of each pixel of the picture, which has a colour in each quarter."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The model is the only one, so requests need not name it."""
    directory = tmp_path_factory.mktemp("semantic")
    ran([sys.executable, "-m", "tests.colour_model", str(directory / "models")])
    with running(directory / "models", directory) as server, server.client() as client:
        yield client


@pytest.fixture(scope="module")
def body() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.array(COLOURS, np.uint8)[EXPECTED]).save(file, "PNG")
    return file.getvalue()


def values(png: bytes) -> list[list[int]]:
    return np.asarray(Image.open(io.BytesIO(png))).tolist()


def test_segment(client: httpx.Client, body: bytes) -> None:
    headers = {"Content-Type": "image/png"}
    labels = client.post("/segment?output=labels", content=body, headers=headers)
    assert labels.status_code == 200, labels.text
    assert labels.headers["content-type"] == "image/png"
    assert labels.headers["content-disposition"] == 'inline; filename="labels.png"'
    assert labels.headers["x-model"] == "colours@1"
    assert values(labels.content) == EXPECTED.tolist()
    accept = headers | {"Accept": "application/json"}
    reply = client.post("/segment?output=mask", content=body, headers=accept).json()
    assert values(base64.b64decode(reply["image"])) == np.where(EXPECTED, 255, 0).tolist()
    assert reply["confidence"] == 1.0


def test_paddlex(client: httpx.Client, body: bytes) -> None:
    picture = base64.b64encode(body).decode()
    reply = client.post("/semantic-segmentation", json={"image": picture}).json()
    assert reply["errorCode"] == 0, reply
    assert reply["result"]["size"] == [96, 160]
    assert reply["result"]["labelMap"] == EXPECTED.reshape(-1).tolist()
    assert values(base64.b64decode(reply["result"]["image"])) == EXPECTED.tolist()


def test_open_inference_protocol(client: httpx.Client, body: bytes) -> None:
    picture = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [1],
        "data": [base64.b64encode(body).decode()],
        "parameters": {"content_type": "base64"},
    }
    request = {"inputs": [picture], "parameters": {"output": "labels"}}
    reply = client.post("/v2/models/segment/infer", json=request).json()
    [image] = [output for output in reply["outputs"] if output["name"] == "image"]
    assert values(base64.b64decode(image["data"][0])) == EXPECTED.tolist()

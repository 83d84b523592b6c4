"""/semantic-segmentation: PaddleX's envelope."""

import base64
from typing import Any

import pytest

from paddlepool.compat.paddlex import PART_LABELS, _class_ids, _labels
from tests.compat.fakes import IN_BASE64, PICTURE, FakeServer

PATH = "/semantic-segmentation"


@pytest.mark.parametrize("visualize", [None, True, False])
def test_labels_and_their_picture(server: FakeServer, visualize: bool | None) -> None:
    """Row by row, 1 for the foreground; `size` is height and width."""
    response = server.post(PATH, json={"image": IN_BASE64, "visualize": visualize})
    reply = response.json()
    assert (reply["errorCode"], reply["errorMsg"]) == (0, "Success")
    assert reply["logId"] == response.headers["x-request-id"]
    image = reply["result"].pop("image")
    assert reply["result"] == {"labelMap": [0, 1, 0, 1, 1, 0], "size": [2, 3]}
    assert (image is None) == (visualize is False)
    assert image is None or base64.b64decode(image) == b"encoded"
    request = server.plane.picture
    assert (request.body, request.output, request.threshold) == (PICTURE, "mask", 0.5)


def test_a_body_without_a_type_is_json(server: FakeServer) -> None:
    """PaddleX's example for Node names none."""
    body = f'{{"image": "{IN_BASE64}", "unheard_of": 1}}'.encode()
    assert server.post(PATH, content=body).status_code == 200


@pytest.mark.parametrize("count", [0, 1, PART_LABELS, PART_LABELS + 1])
def test_labels_are_written_in_parts(count: int) -> None:
    mask = bytes([0, 127, 128, 255] * (count // 4 + 1))[:count]
    written = b"".join(_labels(mask)).decode()
    assert written == ",".join("1" if level >= 128 else "0" for level in mask)


@pytest.mark.parametrize("count", [0, 1, 256, PART_LABELS, PART_LABELS + 1])
def test_class_ids_are_written_in_parts(count: int) -> None:
    ids = (bytes(range(256)) * (count // 256 + 1))[:count]
    written = b"".join(_class_ids(ids)).decode()
    assert written == ",".join(str(number) for number in ids)


def test_the_labels_of_a_semantic_segmentation_model(server: FakeServer) -> None:
    server.plane.output, server.plane.labels = "labels", bytes([0, 255, 7, 12, 100, 0])
    reply = server.post(PATH, json={"image": IN_BASE64, "visualize": False}).json()
    assert reply["result"]["labelMap"] == [0, 255, 7, 12, 100, 0]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"image": "http://a.example/x.png"}, "not fetched by URL"),
        ({"image": IN_BASE64, "targetSize": 512}, "targetSize"),
        ({"image": IN_BASE64, "targetSize": [320, 320]}, "targetSize"),
        ({"image": IN_BASE64, "visualize": 1}, "visualize"),
        ({"image": "é"}, "image"),
        ({"image": 7}, "image"),
        ({}, "image"),
        ([], "object"),
        ([[]] * 4_096, "limit is 4096"),
        ({"image": IN_BASE64, "more": [0] * 4_096}, "limit is 4096"),
        ({"image": IN_BASE64, "more": {str(n): 0 for n in range(2_048)}}, "limit is 4096"),
    ],
)
def test_refusals(server: FakeServer, body: Any, says: str) -> None:
    response = server.post(PATH, json=body)
    assert response.status_code == 422, response.text
    reply = response.json()
    assert set(reply) == {"logId", "errorCode", "errorMsg"}
    assert reply["errorCode"] == 422
    assert says in reply["errorMsg"]
    assert not server.plane.payloads

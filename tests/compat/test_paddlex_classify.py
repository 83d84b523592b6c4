"""/image-classification: PaddleX's envelope."""

from typing import Any

import pytest

from paddlepool.tasks.classify.pipeline import ClassifyRequest
from tests.compat.fakes import IN_BASE64, PICTURE, FakeServer

PATH = "/image-classification"


@pytest.mark.parametrize(
    ("fields", "top"),
    [({}, None), ({"topk": 1, "visualize": False}, 1), ({"topk": None, "visualize": None}, None)],
)
def test_categories(server: FakeServer, fields: dict[str, Any], top: int | None) -> None:
    response = server.post(PATH, json={"image": IN_BASE64, **fields})
    reply = response.json()
    assert (reply["errorCode"], reply["errorMsg"]) == (0, "Success")
    assert reply["logId"] == response.headers["x-request-id"]
    categories = [
        {"id": 3, "name": "cat", "score": 0.75},
        {"id": 1, "name": "dog", "score": 0.12346},  # five decimals
    ]
    assert reply["result"] == {"categories": categories[:top], "image": None}
    assert server.plane.payloads == [ClassifyRequest(PICTURE, top)]


def test_a_body_without_a_type_is_json(server: FakeServer) -> None:
    body = f'{{"image": "{IN_BASE64}", "unheard_of": 1}}'.encode()
    assert server.post(PATH, content=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"image": IN_BASE64, "visualize": True}, "not drawn here"),
        ({"image": IN_BASE64, "visualize": 1}, "visualize"),
        ({"image": IN_BASE64, "topk": 0}, "from 1 to 1000"),
        ({"image": IN_BASE64, "topk": True}, "from 1 to 1000"),
        ({"image": IN_BASE64, "topk": "5"}, "from 1 to 1000"),
        ({"image": "http://a.example/x.png"}, "not fetched by URL"),
        ({}, "image"),
        ([], "object"),
    ],
)
def test_refusals(server: FakeServer, body: Any, says: str) -> None:
    response = server.post(PATH, json=body)
    assert response.status_code == 422, response.text
    reply = response.json()
    assert set(reply) == {"logId", "errorCode", "errorMsg"}
    assert says in reply["errorMsg"]
    assert not server.plane.payloads

"""POST /classify: request and reply forms, in the real application over a fake data plane."""

from typing import Any

import pytest

from paddlepool.tasks.classify.pipeline import ClassifyRequest
from tests.compat.fakes import IN_BASE64, PICTURE, FakeServer, shared_server
from tests.service.api.fakes import assert_problem

PATH = "/classify"


@pytest.fixture
def server() -> FakeServer:
    return shared_server()


def test_the_picture_may_be_the_body_a_file_or_base64(server: FakeServer) -> None:
    raw = server.post(PATH, content=PICTURE, headers={"content-type": "image/jpeg"})
    form = server.form(PATH, "file")
    json = server.post(PATH, json={"image": IN_BASE64})
    assert raw.json() == form.json() == json.json()
    assert server.plane.payloads == [ClassifyRequest(PICTURE)] * 3
    assert raw.json() == {
        "labels": [
            {"label": "cat", "class_id": 3, "score": 0.75},
            {"label": "dog", "class_id": 1, "score": 0.1234568},
        ],
        "width": 4,
        "height": 3,
        "model": "animals",
        "version": 2,
    }
    assert raw.headers["x-predictor"] == "onednn"
    assert raw.headers["server-timing"].startswith("queue;dur=")


OPTIONS = {"top": 3, "model": "m@4", "predictor": "native", "timeout_ms": 2500}


@pytest.mark.parametrize("where", ["query", "form", "json"])
def test_parameters(server: FakeServer, where: str) -> None:
    texts = {name: str(value) for name, value in OPTIONS.items()}
    if where == "form":
        response = server.form(PATH, "file", texts)
    elif where == "query":
        response = server.post(
            PATH, params=texts, content=PICTURE, headers={"content-type": "image/png"}
        )
    else:
        response = server.post(PATH, json={"image": IN_BASE64, **OPTIONS})
    assert response.status_code == 200, response.text
    assert server.plane.payloads == [ClassifyRequest(PICTURE, 3)]
    assert server.plane.options == [{"model": "m", "version": 4, "group": "native", "timeout": 2.5}]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "image is missing"),
        ({"image": 7}, "must be a picture as base64"),
        ({"image": "aaaaa"}, "not base64"),
        ({"image": "!!" + IN_BASE64}, "not base64"),
        ({"image": "_-_-"}, "not base64"),
        ({"image": "%%%"}, "not base64"),
        ({"image": "https://secret.example/x.png"}, "not fetched by URL"),
        ({"image": IN_BASE64, "secret": 1}, "known are image, top, model"),
        ({"image": IN_BASE64, "top": 0}, "from 1 to 1000, received 0"),
        ({"image": IN_BASE64, "top": 1001}, "received 1001"),
        ({"image": IN_BASE64, "top": [3]}, "from 1 to 1000"),
        ({"image": IN_BASE64, "model": 5}, "model must be a text"),
        ({"image": IN_BASE64, "timeout_ms": 0}, "timeout_ms is 0, allowed are 1 to"),
        ({"image": IN_BASE64, "timeout_ms": "1s"}, "timeout_ms must be a whole number of"),
        ([], "JSON object"),
    ],
)
def test_json_refusals(server: FakeServer, body: Any, says: str) -> None:
    response = server.post(PATH, json=body)
    assert response.status_code == 422
    assert says in response.json()["detail"]
    assert "secret" not in response.text
    assert not server.plane.payloads


def test_a_parameter_stands_in_one_place(server: FakeServer) -> None:
    response = server.post(f"{PATH}?top=2", json={"image": IN_BASE64, "top": 2})
    assert_problem(response, 422, "invalid_parameter")
    assert "both in the query and in the body" in response.json()["detail"]
    response = server.post(f"{PATH}?x=2", json={"image": IN_BASE64})
    assert_problem(response, 422, "invalid_parameter")
    assert "the query has an unknown parameter" in response.json()["detail"]
    response = server.post(f"{PATH}?top=2&top=3", json={"image": IN_BASE64})
    assert "top is given twice in the query" in response.json()["detail"]


def test_other_bodies_are_refused(server: FakeServer) -> None:
    response = server.post(PATH, content=b"x", headers={"content-type": "text/plain"})
    assert_problem(response, 415, "unsupported_media_type")
    assert_problem(server.post(PATH, content=b""), 422, "file_missing")


def test_the_limit_of_the_body() -> None:
    server = shared_server(classify_max_bytes=len(PICTURE) - 1)
    response = server.post(PATH, content=PICTURE, headers={"content-type": "image/png"})
    assert_problem(response, 413, "file_too_large")

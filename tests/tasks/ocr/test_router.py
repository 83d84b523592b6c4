"""POST /ocr over real predictor processes: a detector and a recogniser of bars."""

import sys
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from paddlepool.main import create_app
from paddlepool.tasks.task import load_tasks, settings_class
from tests.engine.fakes import wait_until
from tests.ran import ran
from tests.tasks.ocr.pages import BARS, encoded, page

pytestmark = pytest.mark.paddle

PAGE = encoded(page())
BASE64 = b64encode(PAGE).decode()
TEXTS = [bar[-1] for bar in BARS]
PNG = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("ocr_repository")
    ran([sys.executable, "-m", "tests.tasks.ocr.tiny_models", root])
    settings = settings_class(load_tasks().values())(
        model_repository=root, timeout_default_ms=30_000, codec_processes=1, prove_groups="off"
    )
    with TestClient(create_app(settings), "http://localhost") as client:
        wait_until(lambda: client.get("/v2/health/ready").status_code == 200)
        yield client


def lines(reply: Any) -> list[list[str]]:
    assert reply.status_code == 200, reply.text
    return [[line["text"] for line in page["lines"]] for page in reply.json()["pages"]]


def test_the_picture_is_the_body(client: TestClient) -> None:
    reply = client.post("/ocr", content=PAGE, headers=PNG)
    assert lines(reply) == [TEXTS]
    body = reply.json()
    assert (body["model"], body["version"]) == ("ocr", 1)
    [found] = body["pages"]
    assert (found["width"], found["height"], found["angle"]) == (320, 240, 0)
    line = found["lines"][0]
    assert line["box"] == [[17, 27], [181, 27], [181, 55], [17, 55]]
    assert 0.9 < line["score"] <= 1
    assert reply.headers["x-predictor"] == "detect:onednn,recognise:onednn"
    assert "recognise-infer" in reply.headers["server-timing"]


def test_several_pictures_are_files_of_a_form(client: TestClient) -> None:
    files = [("file", (f"{n}.png", picture)) for n, picture in enumerate((PAGE, PAGE))]
    assert lines(client.post("/ocr", files=files, data={"limit": "320"})) == [TEXTS, TEXTS]


def test_pictures_in_json(client: TestClient) -> None:
    assert lines(client.post("/ocr", json={"image": BASE64, "limit": 320})) == [TEXTS]
    both = client.post("/ocr?min_score=0", json={"images": [BASE64, BASE64]})
    assert lines(both) == [TEXTS, TEXTS]


def test_text_and_picture(client: TestClient) -> None:
    reply = client.post("/ocr?format=text", content=PAGE, headers=PNG)
    assert (reply.text, reply.headers["content-type"]) == (
        "b\na\na\n",
        "text/plain; charset=utf-8",
    )
    reply = client.post("/ocr?format=png", content=PAGE, headers=PNG)
    assert reply.headers["content-type"] == "image/png"
    assert reply.content.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"image": BASE64, "min_score": 2}, 422, "invalid_parameter"),
        ({"image": BASE64, "limit": "wide"}, 422, "invalid_parameter"),
        ({"image": BASE64, "colour": "red"}, 422, "invalid_parameter"),
        ({"image": BASE64, "timeout_ms": "soon"}, 422, "invalid_parameter"),
        ({"image": BASE64, "model": 3}, 422, "invalid_parameter"),
        ({"image": BASE64, "orientation": True}, 422, "invalid_parameter"),
        ({"image": "https://example.org/a.png"}, 422, "invalid_parameter"),
        ({"image": BASE64, "images": [BASE64]}, 422, "file_missing"),
        ({}, 422, "file_missing"),
        ({"images": []}, 422, "invalid_parameter"),
        ({"images": [BASE64] * 17}, 422, "too_many_inputs"),
        ({"image": BASE64, "model": "none"}, 404, "model_not_found"),
        ({"image": b64encode(b"no picture").decode()}, 415, "unsupported_media_type"),
    ],
)
def test_bad_requests_are_refused(
    client: TestClient, body: dict[str, Any], status: int, code: str
) -> None:
    reply = client.post("/ocr", json=body)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert "wide" not in reply.text
    assert "red" not in reply.json()["detail"].split()


def test_a_picture_of_several_is_named_by_its_number(client: TestClient) -> None:
    for picture in ("!!", 5):
        detail = client.post("/ocr", json={"images": [BASE64, picture]}).json()["detail"]
        assert detail.startswith("picture 2 of images ")


def test_a_parameter_stands_in_one_place(client: TestClient) -> None:
    reply = client.post("/ocr?limit=320", json={"image": BASE64, "limit": 320})
    assert reply.status_code == 422
    assert "limit is given both" in reply.json()["detail"]


def test_paddlex_clients_are_answered_in_their_form(client: TestClient) -> None:
    body = {"file": BASE64, "fileType": 1, "visualize": False, "logId": "one"}
    reply = client.post("/ocr", json=body | {"textDetLimitSideLen": 64, "textDetLimitType": "min"})
    assert reply.status_code == 200, reply.text
    document = reply.json()
    assert (document["logId"], document["errorCode"]) == ("one", 0)
    [result] = document["result"]["ocrResults"]
    pruned = result["prunedResult"]
    assert pruned["rec_texts"] == TEXTS
    assert pruned["rec_polys"] == pruned["dt_polys"]
    assert pruned["rec_boxes"][0] == [17, 27, 181, 55]
    assert pruned["text_det_params"]["limit_type"] == "min"
    assert result["ocrImage"] is None
    assert document["result"]["dataInfo"] == {"width": 320, "height": 240, "type": "image"}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"fileType": 0}, "PDF"),
        ({"file": b64encode(b"%PDF-1.7").decode()}, "PDF"),
        ({"useDocUnwarping": True}, "useDocUnwarping"),
        ({"useTextlineOrientation": True}, "useTextlineOrientation"),
        ({"returnWordBox": True}, "returnWordBox"),
        ({"useDocOrientationClassify": True}, "orient"),
        ({"textDetThresh": 2}, "textDetThresh"),
        ({"textDetLimitSideLen": 64.5}, "whole number"),
        ({"textDetLimitType": "mean"}, "min, max"),
        ({"visualize": "yes"}, "visualize"),
        ({"file": ""}, "file is missing"),
    ],
)
def test_what_paddlex_may_request_and_this_server_lacks_is_named(
    client: TestClient, fields: dict[str, Any], word: str
) -> None:
    reply = client.post("/ocr", json={"file": BASE64} | fields)
    document = reply.json()
    assert document["errorCode"] == reply.status_code >= 400
    assert word in document["errorMsg"]
    assert "mean" not in document["errorMsg"]


def test_the_whole_task_is_a_model_of_v2(client: TestClient) -> None:
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES"}
    inputs = [tensor | {"data": [BASE64], "parameters": {"content_type": "base64"}}]
    body = {"inputs": inputs, "parameters": {"min_score": 0.5}}
    reply = client.post("/v2/models/ocr/infer", json=body)
    assert reply.status_code == 200, reply.text
    outputs = {output["name"]: output for output in reply.json()["outputs"]}
    assert outputs["texts"]["data"] == TEXTS
    assert outputs["boxes"]["shape"] == [3, 4, 2]
    assert outputs["size"]["data"] == [320, 240]

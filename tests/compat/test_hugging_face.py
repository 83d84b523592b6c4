"""The Hugging Face client: nested lists, masks, and how it is known."""

import base64
from typing import Any

import pytest

from tests.compat.fakes import IN_BASE64, PICTURE, FakeServer

AGENT = {"user-agent": "unknown/None; hf_hub/2.4.0; python/3.11.7"}
LABELS = [{"label": "happy", "score": 0.75}, {"label": "sad", "score": 0.25}]


@pytest.mark.parametrize("path", ["/hf/sentiment", "/sentiment", "/hf", "/"])
def test_labels_are_nested(server: FakeServer, path: str) -> None:
    one = server.post(path, json={"inputs": "好", "parameters": {}}, headers=AGENT)
    assert one.json() == [LABELS]
    parameters = {"top_k": 1, "function_to_apply": "softmax", "truncation": True, "targets": None}
    body = {"inputs": ["好", "坏"], "parameters": parameters, "options": {"use_cache": True}}
    assert server.post(path, json=body, headers=AGENT).json() == [LABELS[:1]] * 2


@pytest.mark.parametrize("agent", ["curl/8", "", "python-httpx/0.28"])
def test_others_get_what_they_always_got(server: FakeServer, agent: str) -> None:
    headers = {"user-agent": agent}
    reply = server.post("/sentiment", json={"inputs": "好"}, headers=headers).json()
    assert [label["label"] for label in reply] == ["happy", "sad"]
    kind = {"content-type": "image/jpeg"}
    assert server.post("/segment", content=PICTURE, headers=headers | kind).content == b"encoded"
    assert server.post("/", content=PICTURE, headers=headers | kind).status_code == 405
    assert server.client.get("/", headers=AGENT).headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/hf/segment", "/segment", "/hf", "/"])
@pytest.mark.parametrize("kind", [None, "image/jpeg", "application/octet-stream"])
def test_a_picture_without_a_type(server: FakeServer, path: str, kind: str | None) -> None:
    headers = AGENT | ({"content-type": kind} if kind else {})
    [segment] = server.post(path, content=PICTURE, headers=headers).json()
    assert base64.b64decode(segment.pop("mask")) == b"encoded"
    assert segment == {"label": "foreground", "score": 0.9}
    request = server.plane.picture
    assert (request.body, request.output, request.threshold) == (PICTURE, "mask", None)


@pytest.mark.parametrize(
    ("parameters", "threshold", "segments"),
    [
        ({"mask_threshold": 0.4}, 0.4, 1),
        ({"threshold": 0.95}, None, 0),
        ({"threshold": 0.5, "subtask": "semantic"}, None, 1),
        ({}, None, 1),
    ],
)
def test_parameters_come_with_base64(
    server: FakeServer, parameters: dict[str, Any], threshold: float | None, segments: int
) -> None:
    for path in ("/hf/segment", "/hf"):
        reply = server.post(path, json={"inputs": IN_BASE64, "parameters": parameters})
        assert (reply.status_code, len(reply.json())) == (200, segments)
        assert server.plane.picture.threshold == threshold


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/hf/sentiment", {"inputs": "a", "parameters": {"function_to_apply": "none"}}, "softmax"),
        ("/hf/sentiment", {"inputs": "a", "parameters": {"top_k": 0}}, "top_k"),
        ("/hf/sentiment", {"inputs": "a", "parameters": {"candidate_labels": ["b"]}}, "candidate"),
        (
            "/hf",
            {"inputs": "a", "parameters": {"candidate_labels": ["b"], "multi_label": False}},
            "parameters.candidate_labels",
        ),
        ("/hf", {"inputs": "a", "parameters": {"src_lang": "zh", "top_k": 1}}, "src_lang"),
        ("/hf", {"inputs": IN_BASE64, "parameters": {"prompt": "a"}}, "prompt"),
        ("/hf", {"inputs": IN_BASE64, "question": "a", "image": IN_BASE64}, "not supported"),
        ("/hf", {"inputs": "a", "parameters": {}, "stream": False}, "stream"),
        ("/hf", {"inputs": 7}, "inputs"),
        ("/hf/sentiment", {"inputs": {"text": "a"}}, "inputs"),
        ("/hf/segment", {"inputs": IN_BASE64, "parameters": {"subtask": "panoptic"}}, "subtask"),
        ("/hf/segment", {"inputs": IN_BASE64, "parameters": {"threshold": 2}}, "threshold"),
        ("/hf/segment", {"inputs": IN_BASE64, "parameters": []}, "parameters"),
        ("/hf/segment", {"inputs": "https://a.example/x.jpg"}, "not fetched by URL"),
        ("/hf/segment", [], "object"),
    ],
)
def test_refusals(server: FakeServer, path: str, body: Any, says: str) -> None:
    response = server.post(path, json=body)
    assert response.status_code == 422, response.text
    assert says in response.json()["error"]
    assert set(response.json()) == {"error"}


def test_other_bodies(server: FakeServer) -> None:
    assert server.form("/hf/segment", "file").status_code == 415
    assert server.post("/hf/segment").status_code == 422
    large = server.post("/hf", json={"inputs": ["好"] * 100_000})
    assert (large.status_code, set(large.json())) == (413, {"error"})

"""/predict: texts and batches, and what is refused."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paddlepool.compat.tei import described
from paddlepool.tasks.sentiment.pipeline import SentimentSettings, TextRequest
from tests.compat.fakes import FakeServer, shared_server

PATH = "/predict"
LABELS = [{"score": 0.75, "label": "happy"}, {"score": 0.25, "label": "sad"}]


def test_a_text_and_a_batch(server: FakeServer) -> None:
    assert server.post(PATH, json={"inputs": "好"}).json() == LABELS
    nulls = {"truncate": None, "truncation_direction": None, "raw_scores": None}
    assert server.post(PATH, json={"inputs": ["好"]} | nulls).json() == LABELS
    assert server.post(PATH, json={"inputs": [["好"], ["坏"]]}).json() == [LABELS, LABELS]
    one, several = (TextRequest(texts, truncate=False) for texts in (["好"], ["好", "坏"]))
    assert server.plane.payloads == [one, one, several]


def test_with_truncate_a_text_may_be_cut(server: FakeServer) -> None:
    body = {"inputs": "好", "truncate": True, "truncation_direction": "right", "raw_scores": False}
    assert server.post(PATH, json=body).status_code == 200
    assert server.plane.payloads[-1].truncate


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"inputs": ["a", "b"]}, 422, "Validation", "pairs"),
        ({"inputs": [["a", "b"]]}, 422, "Validation", "pairs"),
        ({"inputs": ["a", "b", "c"]}, 422, "Validation", "batch"),
        ({"inputs": [[1]]}, 422, "Validation", "batch"),
        ({}, 422, "Validation", "inputs"),
        ({"inputs": ""}, 400, "Empty", "visible"),
        ({"inputs": []}, 400, "Empty", "empty"),
        ({"inputs": "a", "raw_scores": True}, 422, "Validation", "raw_scores"),
        (
            {"inputs": "a", "truncate": True, "truncation_direction": "left"},
            422,
            "Validation",
            "truncation_direction",
        ),
        ({"inputs": "a", "truncate": "yes"}, 422, "Validation", "truncate"),
        ({"inputs": [["a"]] * 33}, 413, "Validation", "32"),
        ({"inputs": "a" * 9_999}, 413, "Validation", "2000"),
    ],
)
def test_refusals(
    server: FakeServer, body: dict[str, Any], status: int, kind: str, says: str
) -> None:
    response = server.post(PATH, json=body)
    assert response.status_code == status, response.text
    assert response.json()["error_type"] == kind
    assert says in response.json()["error"]
    assert not server.plane.payloads


def test_a_body_that_no_parser_takes(server: FakeServer) -> None:
    """400 says to its clients that there is no text."""
    response = server.post(PATH, content=b"[" * 3_000, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")


def test_health_and_info(server: FakeServer) -> None:
    healthy = server.client.get("/health")
    assert (healthy.status_code, healthy.json()["errorCode"]) == (200, 0)
    info = server.client.get("/info").json()
    assert (info["max_client_batch_size"], info["name"]) == (32, "paddlepool")
    assert set(info["model_type"]) == {"classifier"}
    closed = shared_server(compatible_apis=("rembg",))
    assert closed.client.get("/health").status_code == 404
    assert "model_type" not in closed.client.get("/info").json()


def test_without_a_model_nothing_is_healthy(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.services.registry, "models", [])
    unhealthy = server.client.get("/health")
    assert (unhealthy.status_code, unhealthy.json()["error_type"]) == (503, "Unhealthy")


def test_the_limit_in_tokens_is_the_models_even_if_it_is_the_default() -> None:
    model = SimpleNamespace(
        name="emotion", config=SimpleNamespace(parameters={"labels": ["sad", "happy"]})
    )
    services = SimpleNamespace(
        settings=SimpleNamespace(of=lambda _: SentimentSettings(), max_connections=8),
        dataplane=SimpleNamespace(default_models={"sentiment": "emotion"}),
        registry=SimpleNamespace(served=lambda: [model]),
    )
    info = described(cast(Any, services))
    assert (info["max_input_length"], info["max_batch_tokens"]) == (512, 512 * 32)
    assert info["model_type"]["classifier"]["label2id"] == {"sad": 0, "happy": 1}

"""POST /sentiment: request and reply forms, over the real error table and a fake data plane."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.api.errors import install
from app.dataplane import Answer
from app.observability.metrics import Metrics
from app.pipelines.sentiment.pipeline import Score, TextScores
from app.pipelines.sentiment.router import build_router
from tests.api.fakes import make_settings

SECRET = "独一无二的秘密"


class FakePlane:
    """Answers every text with the same scores and remembers how it was asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None

    async def run(self, task: str, payload: Sequence[str], **options: Any) -> Answer:
        self.calls.append({"task": task, "payload": list(payload)} | options)
        if self.error:
            raise self.error
        scores = (
            Score("happy", "快乐", 0.7000000123),
            Score("sad", "悲伤", 0.2),
            Score("fear", None, 0.1),
        )
        results = tuple(
            TextScores(scores=scores, tokens=12, truncated="长" in text, padding=4)
            for text in payload
        )
        stages = {"preprocess": 0.0002, "queue": 0.0001, "infer": 0.005, "postprocess": 0.0001}
        return Answer(value=results, model="emotion", version=3, group="onednn", stages=stages)


class Server:
    """The endpoint alone in an application, and what stands behind it."""

    def __init__(self) -> None:
        self.plane, self.metrics = FakePlane(), Metrics(build={})
        self.metrics.expect_model("emotion", ["onednn"])
        app = FastAPI()

        @app.middleware("http")
        async def name_request(request: Any, call_next: Any) -> Any:
            request.state.request_id = "test"
            return await call_next(request)

        install(app)
        app.include_router(build_router(make_settings()))
        app.state.paddlepool = SimpleNamespace(
            settings=make_settings(), dataplane=self.plane, metrics=self.metrics
        )
        self.app = app
        self.client = TestClient(app, raise_server_exceptions=False)

    def post(self, body: Any, query: str = "") -> Any:
        content = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self.client.post(
            f"/sentiment{query}", content=content, headers={"Content-Type": "application/json"}
        )


@pytest.fixture
def server() -> Server:
    return Server()


def assert_problem(response: Any, status: int, code: str, **members: Any) -> None:
    """An RFC 9457 reply of this status and code that says nothing of the text."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == code
    assert {name: problem.get(name) for name in members} == members
    assert SECRET not in response.text
    assert SECRET not in json.loads(json.dumps(response.text))


FLAT = [
    {"label": "happy", "label_zh": "快乐", "score": 0.7},
    {"label": "sad", "label_zh": "悲伤", "score": 0.2},
    {"label": "fear", "score": 0.1},
]


@pytest.mark.parametrize(
    ("body", "texts", "expected"),
    [
        ({"text": "好"}, ["好"], FLAT),
        ({"inputs": "好"}, ["好"], FLAT),
        ({"inputs": ["好"]}, ["好"], [FLAT]),
        ({"inputs": ["好", "坏"]}, ["好", "坏"], [FLAT, FLAT]),
        ({"inputs": "好", "parameters": {"top_k": 1}}, ["好"], FLAT[:1]),
        ({"text": "好", "parameters": {"top_k": 6}}, ["好"], FLAT),
        ({"inputs": ["好"], "parameters": {"top_k": 2}}, ["好"], [FLAT[:2]]),
    ],
)
def test_a_string_gets_a_list_and_a_list_gets_a_list_of_lists(
    server: Server, body: Any, texts: list[str], expected: Any
) -> None:
    """The forms of Hugging Face's text-classification; top_k is the most labels a text gets."""
    response = server.post(body)
    assert response.status_code == 200, response.text
    assert response.json() == [
        [row | {"score": pytest.approx(row["score"], abs=1e-6)} for row in rows]
        if isinstance(rows, list)
        else rows | {"score": pytest.approx(rows["score"], abs=1e-6)}
        for rows in expected
    ]
    assert server.plane.calls[0]["payload"] == texts


@pytest.mark.parametrize(
    ("flags", "members"),
    [
        ({"tokens": True}, {"tokens": 12}),
        ({"truncated": True}, {"truncated": True}),
        ({"tokens": True, "truncated": True}, {"tokens": 12, "truncated": True}),
    ],
)
def test_tokens_and_truncated_are_told_where_asked(
    server: Server, flags: dict[str, bool], members: dict[str, Any]
) -> None:
    """Then each text's reply is an object whose scores are the usual list."""
    single = server.post({"text": "长", "parameters": flags}).json()
    assert {name: single[name] for name in members} == members
    assert set(single) == {"scores", *members}
    [batch] = server.post({"inputs": ["长"], "parameters": flags}).json()
    assert batch == single
    assert server.post({"text": "长"}).json() == single["scores"]


@pytest.mark.parametrize(("text", "told"), [("短", "false"), ("长", "true")])
def test_the_headers_say_where_the_answer_came_from(server: Server, text: str, told: str) -> None:
    """X-Truncated is there also for those who did not ask."""
    headers = server.post({"text": text}).headers
    assert headers["content-type"] == "application/json"
    assert (headers["x-model"], headers["x-predictor"]) == ("emotion@3", "onednn")
    assert headers["x-truncated"] == told
    assert headers["server-timing"].startswith("preprocess;dur=0.20, queue;dur=0.10, infer;dur=5.0")


def test_padding_is_counted(server: Server) -> None:
    """paddlepool_padding_tokens_total grows by the padding of every text."""
    server.post({"inputs": ["好", "坏"]})
    counted = 'paddlepool_padding_tokens_total{model="emotion",predictor="onednn"} 8.0'
    assert counted in server.metrics.render().decode()


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("?model=emotion@3&predictor=native&timeout_ms=500", {}),
        ("", {"model": "emotion@3", "predictor": "native", "timeout_ms": 500}),
        ("?model=emotion@3", {"predictor": "native", "timeout_ms": 500}),
    ],
    ids=["query", "body", "both"],
)
def test_model_predictor_and_deadline_in_query_or_body(
    server: Server, query: str, parameters: dict[str, Any]
) -> None:
    """Both places mean the same."""
    assert server.post({"text": "好", "parameters": parameters}, query).status_code == 200
    [call] = server.plane.calls
    expected = {"model": "emotion", "version": 3, "group": "native", "timeout": 0.5}
    assert {name: call[name] for name in expected} == expected


def test_the_default_deadline_is_ten_seconds(server: Server) -> None:
    """And model and predictor are the data plane's choice."""
    server.post({"text": "好"})
    [call] = server.plane.calls
    assert (call["timeout"], call["model"], call["version"], call["group"]) == (
        10,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("body", "query"),
    [
        pytest.param({}, "", id="neither"),
        pytest.param({"text": SECRET, "inputs": SECRET}, "", id="both"),
        pytest.param({"text": [SECRET]}, "", id="text is a list"),
        pytest.param({"inputs": [SECRET, 1]}, "", id="inputs holds a number"),
        pytest.param({"text": SECRET, SECRET: 1}, "", id="unknown field"),
        pytest.param(
            {"text": SECRET, "parameters": {"temperature": 1}}, "", id="unknown parameter"
        ),
        pytest.param({"text": SECRET, "parameters": {"top_k": 0}}, "", id="top_k 0"),
        pytest.param({"text": SECRET, "parameters": {"top_k": "6"}}, "", id="top_k text"),
        pytest.param('{"text":"' + SECRET + '","parameters":{"top_k":NaN}}', "", id="top_k NaN"),
        pytest.param(
            '{"text":"' + SECRET + '","parameters":{"top_k":1e400}}', "", id="top_k 1e400"
        ),
        pytest.param({"text": SECRET, "parameters": {"timeout_ms": 30_001}}, "", id="timeout body"),
        pytest.param({"text": SECRET}, "?timeout_ms=30001", id="timeout query"),
        pytest.param({"text": SECRET}, "?model=emotion@x", id="version word"),
        pytest.param(
            {"text": SECRET, "parameters": {"model": "emotion"}}, "?model=emotion", id="twice"
        ),
        pytest.param('{"text": "\\ud800"}', "", id="lone surrogate"),
        pytest.param('{"inputs":["' + SECRET + '","a\\udfff"]}', "", id="lone surrogate in a list"),
        pytest.param([SECRET], "", id="a bare list"),
    ],
)
def test_what_is_wrong_is_422_and_never_repeated(server: Server, body: Any, query: str) -> None:
    """T3, and every parameter outside its limits: invalid_parameter, and nothing has run."""
    assert_problem(server.post(body, query), 422, "invalid_parameter")
    assert not server.plane.calls


@pytest.mark.parametrize(
    ("body", "code", "members"),
    [
        ({"text": ""}, "text_empty", {}),
        ({"text": "\u3000\u200b\ufeff "}, "text_empty", {}),
        ({"inputs": []}, "text_empty", {"limit": 1, "received": 0}),
        ({"inputs": [SECRET, ""]}, "text_empty", {}),
        ({"text": SECRET * 300}, "text_too_long", {"limit": 2_000, "received": 2_100}),
        ({"inputs": [SECRET] * 33}, "too_many_inputs", {"limit": 32, "received": 33}),
    ],
    ids=["empty", "invisible", "no texts", "one empty", "too long", "too many"],
)
def test_texts_outside_the_limits_are_422_with_the_numbers(
    server: Server, body: Any, code: str, members: dict[str, int]
) -> None:
    """T1 and T2 as the client sees them."""
    assert_problem(server.post(body), 422, code, **members)
    assert not server.plane.calls


def test_limits_come_from_the_settings(server: Server) -> None:
    """What /info shows is what is enforced."""
    server.app.state.paddlepool.settings = make_settings(text_max_characters=3, text_max_inputs=1)
    assert_problem(server.post({"text": "1234"}), 422, "text_too_long", limit=3, received=4)
    assert_problem(server.post({"inputs": ["1", "2"]}), 422, "too_many_inputs", limit=1)


def test_eighty_thousand_wrong_items_cost_one_message(server: Server) -> None:
    """The reply to a list of numbers stays small."""
    response = server.post({"inputs": [1] * 80_000})
    assert_problem(response, 422, "invalid_parameter")
    assert len(response.content) < 2_000


def test_the_operation_is_described(server: Server) -> None:
    """A stable operation id, the 200's form, and the parameters; errors are added for all tasks."""
    operation = server.app.openapi()["paths"]["/sentiment"]["post"]
    assert operation["operationId"] == "classifySentiment"
    assert "anyOf" in operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert {p["name"] for p in operation["parameters"]} == {"model", "predictor", "timeout_ms"}
    in_body = server.app.openapi()["components"]["schemas"]["SentimentParameters"]["properties"]
    assert in_body.keys() == {"top_k", "tokens", "truncated"}

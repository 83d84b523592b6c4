"""POST /sentiment: request and reply forms, in the real application over a fake data plane."""

import json
import re
from typing import Any

import httpx
import pytest

from paddlepool.tasks.sentiment.pipeline import Score
from tests.compat.fakes import FakeServer, shared_server
from tests.service.api.fakes import assert_problem

SECRET = "独一无二的秘密"


@pytest.fixture
def server() -> FakeServer:
    server = shared_server()
    server.plane.scores = (
        Score("happy", "快乐", 0.7000000123),
        Score("sad", "悲伤", 0.2),
        Score("fear", None, 0.1),
    )
    return server


def ask(server: FakeServer, body: Any, query: str = "") -> httpx.Response:
    content = body if isinstance(body, (str, bytes)) else json.dumps(body)
    kind = {"Content-Type": "application/json"}
    return server.post(f"/sentiment{query}", content=content, headers=kind)


def assert_refused(response: httpx.Response, code: str, **members: Any) -> None:
    """422 with this code, and not a word of the text."""
    problem = assert_problem(response, 422, code)
    assert {name: problem.get(name) for name in members} == members
    assert SECRET not in response.text
    assert SECRET not in json.dumps(problem, ensure_ascii=False)


FLAT = [
    {"label": "happy", "label_zh": "快乐", "score": 0.7},
    {"label": "sad", "label_zh": "悲伤", "score": 0.2},
    {"label": "fear", "score": 0.1},
]


@pytest.mark.parametrize(
    ("body", "texts", "expected"),
    [
        ({"text": "好"}, ["好"], FLAT),
        ({"inputs": "好", "text": None, "parameters": None}, ["好"], FLAT),
        ({"inputs": "好", "parameters": {"tokens": None, "truncated": None}}, ["好"], FLAT),
        ({"inputs": ["好"]}, ["好"], [FLAT]),
        ({"inputs": ["好", "坏"]}, ["好", "坏"], [FLAT, FLAT]),
        ({"inputs": "好", "parameters": {"top_k": 1}}, ["好"], FLAT[:1]),
        ({"inputs": ["好"], "parameters": {"top_k": 2}}, ["好"], [FLAT[:2]]),
    ],
)
def test_a_string_gets_a_list_and_a_list_gets_a_list_of_lists(
    server: FakeServer, body: Any, texts: list[str], expected: Any
) -> None:
    """The forms of Hugging Face's text-classification; top_k is the most labels a text gets."""
    response = ask(server, body)
    assert response.status_code == 200, response.text
    assert response.json() == expected
    assert [payload.texts for payload in server.plane.payloads] == [texts]


@pytest.mark.parametrize(
    ("flags", "members"),
    [
        ({"tokens": True}, {"tokens": 3}),
        ({"truncated": True}, {"truncated": True}),
        ({"tokens": True, "truncated": True}, {"tokens": 3, "truncated": True}),
    ],
)
def test_tokens_and_truncated_are_told_where_asked(
    server: FakeServer, flags: dict[str, bool], members: dict[str, Any]
) -> None:
    single = ask(server, {"text": "长", "parameters": flags}).json()
    assert {name: single[name] for name in members} == members
    assert set(single) == {"scores", *members}
    [batch] = ask(server, {"inputs": ["长"], "parameters": flags}).json()
    assert batch == single
    assert ask(server, {"text": "长"}).json() == single["scores"]


def test_padding_is_counted() -> None:
    server = FakeServer()
    server.services.metrics.expect_model("emotion", ["onednn"])
    ask(server, {"inputs": ["好", "坏"]})
    labels = 'instance_group="onednn",model="emotion",predictor="onednn"'
    counted = f"paddlepool_padding_tokens_total{{{labels}}} 8.0"
    assert counted in server.services.metrics.render()[0].decode()


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("?model=emotion@3&predictor=native&timeout_ms=500", {}),
        ("", {"model": "emotion@3", "predictor": "native", "timeout_ms": 500}),
        ("?model=emotion@3", {"predictor": "native", "timeout_ms": 500}),
        ("?model=emotion@3&instance_group=native", {"timeout_ms": 500}),
        ("", {"model": "emotion@3", "instance_group": "native", "timeout_ms": 500}),
        ("?model=emotion@3&timeout_ms=500&predictor=native", {"instance_group": "native"}),
    ],
    ids=["query", "body", "both", "group in query", "group in body", "group and alias"],
)
def test_model_group_and_deadline_in_query_or_body(
    server: FakeServer, query: str, parameters: dict[str, Any]
) -> None:
    assert ask(server, {"text": "好", "parameters": parameters}, query).status_code == 200
    routing = {"model": "emotion", "version": 3, "group": "native", "timeout": 0.5}
    assert server.plane.options == [routing]


def test_the_default_deadline_is_ten_seconds(server: FakeServer) -> None:
    ask(server, {"text": "好"})
    routing = {"model": None, "version": None, "group": None, "timeout": 10}
    assert server.plane.options == [routing]


@pytest.mark.parametrize(
    ("body", "query"),
    [
        pytest.param({}, "", id="neither"),
        pytest.param({"text": SECRET, "inputs": SECRET}, "", id="both"),
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
        pytest.param(
            {"text": SECRET, "parameters": {"predictor": "a"}}, "?instance_group=b", id="two groups"
        ),
        pytest.param('{"text": "\\ud800"}', "", id="lone surrogate"),
        pytest.param('{"inputs":["' + SECRET + '","a\\udfff"]}', "", id="lone surrogate in a list"),
    ],
)
def test_what_is_wrong_is_422_and_never_repeated(server: FakeServer, body: Any, query: str) -> None:
    assert_refused(ask(server, body, query), "invalid_parameter")
    assert not server.plane.payloads


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
    server: FakeServer, body: Any, code: str, members: dict[str, int]
) -> None:
    assert_refused(ask(server, body), code, **members)
    assert not server.plane.payloads


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"inputs": ["好", 1]}, r"body\.inputs\..*1: Input should be a valid string"),
        ([], "body: Input should be a JSON object"),
    ],
)
def test_the_detail_names_what_the_client_can_mend(
    server: FakeServer, body: Any, detail: str
) -> None:
    assert re.fullmatch(detail, ask(server, body).json()["detail"])


@pytest.mark.parametrize("query", ["?top_k=1", f"?{SECRET}=1", "?model=a&model=b"])
def test_the_query_has_routing_parameters_once_and_no_others(
    server: FakeServer, query: str
) -> None:
    assert_refused(ask(server, {"text": "好"}, query), "invalid_parameter")
    assert not server.plane.payloads


def test_limits_come_from_the_settings() -> None:
    server = shared_server(text_max_characters=3, text_max_inputs=1)
    assert_refused(ask(server, {"text": "1234"}), "text_too_long", limit=3, received=4)
    assert_refused(ask(server, {"inputs": ["1", "2"]}), "too_many_inputs", limit=1)


def test_eighty_thousand_wrong_items_cost_one_message(server: FakeServer) -> None:
    response = ask(server, {"inputs": [1] * 80_000})
    assert_refused(response, "invalid_parameter")
    assert len(response.content) < 2_000

"""Errors over HTTP: one table, one shape, and never a word of what the client sent."""

import inspect
import logging
import re
import tomllib

import pytest
from fastapi import APIRouter

from paddlepool.contracts import errors
from paddlepool.contracts.errors import (
    BackendError,
    ModelNotReady,
    Overloaded,
    PaddlepoolError,
    TextTooLong,
)
from paddlepool.service.api.errors import STATUS, WHEN, error_codes
from tests.ran import ROOT
from tests.service.api.fakes import Client, assert_problem, make_app, make_settings

APP = ROOT / "app" / "paddlepool"
PAGE = ROOT / "docs" / "errors.md"
SECRET = "correct horse battery staple"
JSON = {"Content-Type": "application/json"}


def raising(error: Exception, path: str = "/fails") -> Client:
    router = APIRouter()

    async def fails() -> None:
        raise error

    router.add_api_route(path, fails)
    return Client(make_app(router))


def test_table_and_tree_are_equal_sets() -> None:
    tree = {
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, PaddlepoolError) and "code" in vars(item)
    }
    assert tree == set(STATUS)


def test_every_error_happens_somewhere() -> None:
    """A client need not be ready for what no line of the server makes."""
    sources = [path.read_text("utf-8") for path in APP.rglob("*.py") if path.name != "errors.py"]
    made = set(re.findall(r"\b([A-Z]\w+)\(", "\n".join(sources)))
    assert {error.__name__ for error in set(STATUS) - {PaddlepoolError}} <= made


def with_table(page: str) -> str:
    """The text of docs/errors.md with the table as the code has it."""
    head = "| code | status | title | when |\n|---|---|---|---|"
    rows = [f"| `{row.code}` | {row.status} | {row.title} | {row.when} |" for row in error_codes()]
    table = "\n".join([head, *rows])
    return re.sub(rf"{re.escape(head)}(\n\|.*)*", lambda _: table, page)


def test_every_code_is_documented() -> None:
    """docs/errors.md is what `python -m tests.service.api.test_errors` makes of it."""
    page = PAGE.read_text("utf-8")
    assert with_table(page) == page
    assert tomllib.loads(WHEN.read_text("utf-8")).keys() == {row.code for row in error_codes()}


def test_a_domain_error_names_limit_and_received() -> None:
    error = TextTooLong("text 1 of 1 has 9 characters; the limit is 5", limit=5, received=9)
    problem = assert_problem(raising(error).get("/fails"), 422, "text_too_long")
    assert problem["title"] == TextTooLong.title
    assert problem["detail"] == "text 1 of 1 has 9 characters; the limit is 5"
    assert (problem["limit"], problem["received"]) == (5, 9)
    assert problem["instance"] == "/fails"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Overloaded("full", retry_after=0.01), "1"),
        (Overloaded("full", retry_after=2.1), "3"),
        (ModelNotReady("loading"), "2"),
    ],
    ids=["at-least-one", "rounded-up", "loading"],
)
def test_503_says_when_to_try_again(error: PaddlepoolError, seconds: str) -> None:
    response = raising(error).get("/fails")
    assert response.status_code == 503
    assert response.headers["retry-after"] == seconds


@pytest.mark.parametrize(
    "error",
    [BackendError(f"cannot open /secret/{SECRET}"), ValueError(SECRET), KeyError(SECRET)],
    ids=["operator", "value", "key"],
)
def test_what_went_wrong_inside_stays_inside(error: Exception) -> None:
    response = raising(error).get("/fails")
    assert_problem(response, 500, "internal_error")
    assert SECRET not in response.text


def test_the_log_of_a_bug_says_where_but_not_what(caplog: pytest.LogCaptureFixture) -> None:
    """An exception's text may quote the client; its class and place cannot."""
    with caplog.at_level(logging.ERROR, "paddlepool.error"):
        response = raising(ValueError(SECRET)).get("/fails")
    [record] = [record for record in caplog.records if record.name == "paddlepool.error"]
    assert record.__dict__["error"] == "ValueError"
    assert record.__dict__["request_id"] == response.headers["x-request-id"]
    assert record.__dict__["where"][-1].startswith("fails:")
    assert SECRET not in str(record.__dict__)


def test_errors_under_v2_have_the_shape_of_its_protocol() -> None:
    response = raising(TextTooLong("too long", limit=5), "/v2/fails").get("/v2/fails")
    assert response.status_code == 422
    assert response.json() == {"error": "too long"}
    missing = Client(make_app()).get("/v2/nothing")
    assert missing.status_code == 404
    assert list(missing.json()) == ["error"]


def test_405_names_every_method_of_the_path(client: Client) -> None:
    response = client.send("OPTIONS", "/v2/systemsharedmemory/status")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD, POST"


def test_trace_needs_no_key_to_be_refused() -> None:
    keyed = Client(make_app(settings=make_settings(api_keys=("k",))))
    assert keyed.send("TRACE", "/info").status_code == 405
    assert keyed.send("TRACE", "/nothing").status_code == 401
    assert keyed.send("DELETE", "/info").status_code == 401


HOSTILE = {
    "nan": (b'{"text": "x", "weight": NaN}', 422, "invalid_parameter"),
    "infinity": (b'{"text": "x", "weight": -Infinity}', 422, "invalid_parameter"),
    "1e400": (b'{"text": "x", "weight": 1e400}', 422, "invalid_parameter"),
    "too-large": (b'{"text": "x", "top_k": 7}', 422, "invalid_parameter"),
    "wrong-type": (b'{"text": ["' + SECRET.encode() + b'"]}', 422, "invalid_parameter"),
    "unknown-field": (b'{"text": "x", "' + SECRET.encode() + b'": 1}', 422, "invalid_parameter"),
    "missing": (b"{}", 422, "invalid_parameter"),
    "empty": (b"", 422, "invalid_parameter"),
    "array": (b'["' + SECRET.encode() + b'"]', 422, "invalid_parameter"),
    "not-json": (b'{"text": "' + SECRET.encode(), 422, "invalid_json"),
    "not-utf8": (b'{"text": "\xff' + SECRET.encode() + b'"}', 422, "invalid_json"),
    "deep": (b"[" * 100_000, 400, "invalid_request"),
    "long-integer": (b'{"text": "x", "top_k": ' + b"1" * 5_000 + b"}", 400, "invalid_request"),
    "10-megabytes": (b'{"text": "' + b"x" * 10_000_000 + b'"}', 413, "file_too_large"),
}


@pytest.mark.parametrize(("body", "status", "code"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_body_is_refused_without_an_echo(body: bytes, status: int, code: str) -> None:
    response = Client(make_app()).post("/sentiment", content=body, headers=JSON)
    assert_problem(response, status, code)
    assert SECRET not in response.text
    assert len(response.content) < 1_000


def test_a_wrong_field_is_named_with_its_limit(client: Client) -> None:
    response = client.post("/sentiment", json={"text": "x", "top_k": 7, "weight": "a"})
    problem = assert_problem(response, 422, "invalid_parameter")
    assert [fault["field"] for fault in problem["errors"]] == ["body.top_k", "body.weight"]
    assert "less than or equal to 6" in problem["detail"]
    assert (problem["limit"], problem["received"]) == (6, 7)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")

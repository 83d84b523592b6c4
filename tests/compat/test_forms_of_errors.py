"""Every compatible API reports errors in its own form and code, also those raised before it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from paddlepool.contracts.errors import (
    DeadlineExceeded,
    ImageUnreadable,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    PaddlepoolError,
    TextTooLong,
    WorkerCrashed,
)
from paddlepool.settings.server import API_NAMES
from tests.compat.fakes import IN_BASE64, PICTURE, FakeServer, shared_server

FULL = Overloaded("the queue is full", retry_after=1.2)
ERRORS: dict[str, PaddlepoolError] = {
    "unreadable": ImageUnreadable("the picture cannot be read"),
    "too_long": TextTooLong("text 1 of 1 has more than 128 tokens"),
    "overloaded": FULL,
    "late": DeadlineExceeded("no answer within the deadline of 5 ms"),
    "crashed": WorkerCrashed("the process died"),
    "loading": ModelNotReady("still loading"),
    "nobody": ModelNotFound("no model of this name"),
}
FORM = {"files": {"file": ("a", PICTURE)}}


@dataclass(frozen=True)
class Case:
    """A good request to an API, how it tells errors, and its status for each."""

    path: str
    request: dict[str, Any]
    form: Callable[[dict[str, Any], int], bool]
    statuses: dict[str, int]


def fastapi(reply: dict[str, Any], status: int) -> bool:
    detail = reply["detail"]
    if status == 422:
        return all(set(fault) == {"type", "loc", "msg"} for fault in detail)
    return set(reply) == {"detail"} and isinstance(detail, str)


def removebg(reply: dict[str, Any], status: int) -> bool:
    [error] = reply["errors"]
    return set(reply) == {"errors"} and set(error) == {"title", "code", "detail"}


def tei(reply: dict[str, Any], status: int) -> bool:
    kinds = {400: "Empty", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}
    kind = kinds.get(status, "Validation")
    return set(reply) == {"error", "error_type"} and reply["error_type"] == kind


def hub(reply: dict[str, Any], status: int) -> bool:
    return set(reply) == {"error"}


def paddlex(reply: dict[str, Any], status: int) -> bool:
    return set(reply) == {"logId", "errorCode", "errorMsg"} and reply["errorCode"] == status


TEXT = {"json": {"inputs": "好"}}
STATUSES = {
    "unreadable": 422,
    "too_long": 422,
    "overloaded": 503,
    "late": 504,
    "crashed": 500,
    "loading": 503,
    "nobody": 404,
    "no_key": 401,
    "too_large": 413,
}
CASES = {
    "rembg": Case("/api/remove", FORM, fastapi, STATUSES | {"nobody": 422}),
    "removebg": Case(
        "/v1.0/removebg",
        {"json": {"image_file_b64": IN_BASE64}},
        removebg,
        dict.fromkeys(("unreadable", "too_long", "nobody", "too_large"), 400)
        | {"overloaded": 429, "late": 504, "crashed": 500, "loading": 503, "no_key": 403},
    ),
    "tei": Case(
        "/predict",
        TEXT,
        tei,
        STATUSES | {"too_long": 413, "overloaded": 429, "late": 424, "crashed": 424, "nobody": 424},
    ),
    "huggingface": Case("/hf/sentiment", TEXT, hub, STATUSES),
    "huggingface pictures": Case("/hf/segment", {"content": PICTURE}, hub, STATUSES),
    "huggingface by agent": Case(
        "/", {"content": PICTURE, "headers": {"user-agent": "hf_hub/2.4.0"}}, hub, STATUSES
    ),
    "paddlex classes": Case(
        "/image-classification", {"json": {"image": IN_BASE64}}, paddlex, STATUSES
    ),
    "paddlex": Case("/semantic-segmentation", {"json": {"image": IN_BASE64}}, paddlex, STATUSES),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def check(response: httpx.Response, case: Case, status: int) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert case.form(response.json(), status), response.text
    assert response.headers["x-request-id"]


@every
@pytest.mark.parametrize("kind", ERRORS)
def test_what_the_task_raises(server: FakeServer, case: Case, kind: str) -> None:
    server.plane.error = ERRORS[kind]
    response = server.post(case.path, **case.request)
    check(response, case, case.statuses[kind])
    if kind == "overloaded":
        assert response.headers["retry-after"] == "2"


@every
@pytest.mark.parametrize("header", ["X-Api-Key", "Authorization"])
def test_keys(case: Case, header: str) -> None:
    server = shared_server(api_keys=("secret",))
    request = dict(case.request)
    headers = request.pop("headers", {})
    value = "secret" if header == "X-Api-Key" else "Bearer secret"
    check(server.post(case.path, headers=headers, **request), case, case.statuses["no_key"])
    wrong = headers | {header: value.replace("secret", "guess")}
    check(server.post(case.path, headers=wrong, **request), case, case.statuses["no_key"])
    right = headers | {header: value}
    assert server.post(case.path, headers=right, **request).status_code == 200


@every
def test_a_body_that_is_too_large(case: Case) -> None:
    server = shared_server(classify_max_bytes=20, segment_max_bytes=20, sentiment_max_bytes=5)
    check(server.post(case.path, **case.request), case, case.statuses["too_large"])
    assert not server.plane.payloads


@every
def test_another_method_and_a_wrong_deadline(server: FakeServer, case: Case) -> None:
    request = dict(case.request)
    headers = request.get("headers", {})
    response = server.client.send("DELETE", case.path, headers=headers)
    assert response.status_code == 405
    assert case.form(response.json(), 405)
    for timeout in ("0", "99999999", "soon"):
        refused = server.post(f"{case.path}?timeout_ms={timeout}", **request)
        check(refused, case, 400 if case.form is removebg else 422)
    assert not server.plane.payloads


@pytest.mark.parametrize("name", ["removebg", "huggingface pictures", "paddlex", "paddlex classes"])
@pytest.mark.parametrize("body", ["good", "broken"])
def test_base64_is_read_when_a_place_is_held(server: FakeServer, name: str, body: str) -> None:
    case = CASES[name]
    fields = {"removebg": "image_file_b64", "paddlex": "image", "paddlex classes": "image"}
    good = json.dumps({fields.get(name, "inputs"): IN_BASE64})
    server.plane.before_reading = FULL
    response = server.post(
        case.path,
        content=good if body == "good" else good[:-1],
        headers={"content-type": "application/json"},
    )
    check(response, case, case.statuses["overloaded"])


@pytest.mark.parametrize("closed", API_NAMES)
def test_each_door_can_be_closed(closed: str) -> None:
    server = FakeServer(compatible_apis=tuple(name for name in API_NAMES if name != closed))
    paths = server.client.get("/openapi.json").json()["paths"]
    for name, case in CASES.items():
        if "agent" in name:
            continue
        assert (case.path in paths) == (not name.startswith(closed))
    if closed == "huggingface":
        response = server.post("/sentiment", **TEXT, headers={"user-agent": "hf_hub/2.4.0"})
        assert response.json()[0]["label"] == "happy"

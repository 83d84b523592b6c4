"""The short way of a plain request: who takes it, and that it refuses nothing by itself."""

from __future__ import annotations

from typing import Annotated

import pytest
from fastapi import APIRouter, FastAPI, Query
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from app.api.direct import direct_route, plain_route
from app.api.routing import Routing
from app.api.services import Services

GOOD = '{"text": "好"}'
JSON = "application/json"


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str


async def answer(body: Asked, services: Services, routing: Routing) -> Response:
    """What the short way answers: itself, and all that it was given."""
    return PlainTextResponse(f"direct {body.text} {routing.model} {routing.timeout_ms} {services}")


async def documented(
    body: Asked,
    request: Request,
    model: Annotated[str | None, Query(max_length=64)] = None,
    timeout_ms: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """What FastAPI's way answers."""
    services = request.app.state.paddlepool
    return PlainTextResponse(f"documented {body.text!a} {model} {timeout_ms} {services}")


@pytest.fixture
def client() -> TestClient:
    router = APIRouter(route_class=direct_route(Asked, answer))
    router.add_api_route("/ask", documented, methods=["POST"])
    app = FastAPI()
    app.include_router(router)
    app.state.paddlepool = "services"
    return TestClient(app)


def ask(client: TestClient, body: str, query: str, content_type: str) -> tuple[int, str]:
    reply = client.post(f"/ask{query}", content=body, headers={"Content-Type": content_type})
    return reply.status_code, reply.text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "None None"),
        ("?model=%E5%A5%BD%201", "好 1 None"),
        ("?model=&timeout_ms=7&predictor=a", " 7"),
    ],
)
def test_a_plain_request_takes_the_short_way(client: TestClient, query: str, expected: str) -> None:
    """With what its query says."""
    assert ask(client, GOOD, query, JSON) == (200, f"direct 好 {expected} services")


@pytest.mark.parametrize(
    ("body", "query", "content_type"),
    [
        (GOOD, "", f"{JSON}; charset=utf-8"),
        (GOOD, "", "text/plain"),
        (GOOD, "?model=a&model=b", JSON),
        (GOOD, "?other=1", JSON),
        (GOOD, "?timeout_ms=0", JSON),
        (GOOD, "?timeout_ms=x", JSON),
        (GOOD, f"?model={'a' * 65}", JSON),
        ('{"text": 1}', "", JSON),
        ('{"text": "a", "more": 1}', "", JSON),
        ('{"text": "\\ud800"}', "", JSON),
        ('{"text": ', "", JSON),
        ("[" * 2000, "", JSON),
        ("", "", JSON),
    ],
)
def test_whatever_else_is_answered_as_without_it(
    client: TestClient, body: str, query: str, content_type: str
) -> None:
    """What is unusual, and what is wrong, gets FastAPI's answer: the same with and without it."""
    plain = FastAPI()
    plain.add_api_route("/ask", documented, methods=["POST"])
    plain.state.paddlepool = "services"
    expected = ask(TestClient(plain), body, query, content_type)
    assert ask(client, body, query, content_type) == expected
    assert not expected[1].startswith("direct")


def test_a_body_of_unknown_length_is_not_read_the_short_way(client: TestClient) -> None:
    """It may turn out to be too long while it is read, which FastAPI's way tells."""
    reply = client.post("/ask", content=iter([GOOD.encode()]), headers={"Content-Type": JSON})
    assert reply.text.startswith("documented")


async def answer_plainly(request: Request, services: Services, routing: Routing) -> Response:
    return PlainTextResponse(f"direct {routing.model} {services}")


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("", 200, "direct None services"),
        ("?model=a", 200, "documented"),
        ("?timeout_ms=0", 422, "greater_than_equal"),
    ],
)
def test_without_a_query_an_endpoint_is_asked_itself(query: str, status: int, says: str) -> None:
    """FastAPI solves the parameters where there are any."""
    router = APIRouter(route_class=plain_route(answer_plainly))
    router.add_api_route("/ask", documented, methods=["POST"])
    app = FastAPI()
    app.include_router(router)
    app.state.paddlepool = "services"
    found = ask(TestClient(app), GOOD, query, JSON)
    assert (found[0], says in found[1]) == (status, True), found

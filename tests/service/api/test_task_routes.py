"""The route class of task endpoints: it reads requests as FastAPI does, and refuses them alike."""

import pytest
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.responses import PlainTextResponse, Response

from paddlepool.contracts.errors import InvalidParameter
from paddlepool.service.api.routes import RoutingDep, TaskRoute, split_model
from paddlepool.service.api.services import ServicesDep
from tests.service.api.fakes import Client, make_app, make_settings

GOOD = '{"text": "好"}'
JSON = "application/json"


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str


async def ask(
    body: Asked,
    request: Request,
    services: ServicesDep,
    routing: RoutingDep,
    bgc: str | None = None,
) -> Response:
    del services, request
    return PlainTextResponse(f"{body.text!a} {routing.model} {routing.timeout_ms} {bgc}")


def client(route_class: type[APIRoute]) -> Client:
    router = APIRouter(route_class=route_class)
    router.add_api_route("/ask", ask, methods=["POST"])
    settings = make_settings(timeout_max_ms=20_000, body_max_bytes=1 << 20)
    return Client(make_app(router, settings=settings))


@pytest.mark.parametrize(
    ("body", "query", "content_type", "status"),
    [
        (GOOD, "", JSON, 200),
        (GOOD, "?model=%E5%A5%BD%201&bgc=red&bgc=blue", JSON, 200),
        (GOOD, "?model=&timeout_ms=7&predictor=a&other=1", JSON, 200),
        (GOOD, "?predictor=detect:onednn,recognise:openvino_int8", JSON, 200),
        (GOOD, f"?instance_group={'a' * 513}", JSON, 422),
        (GOOD, "?model=a&model=b", "application/vnd.x+JSON; charset=utf-8", 200),
        (GOOD.encode("utf-16"), "", JSON, 200),
        ('{"text": "\\ud800"}', "", JSON, 200),
        (GOOD, "", "text/json", 415),
        (GOOD, "?timeout_ms=0", JSON, 422),
        ('{"text": 1, "more": 1}', "?timeout_ms=x", JSON, 422),
        (GOOD, f"?model={'a' * 65}", JSON, 422),
        ('{"text": ', "", JSON, 422),
        ("", "", JSON, 422),
        (b'{"text": "\xff"}', "", JSON, 422),
        ("[" * 20_000, "", JSON, 400),
        ("1" * 5000, "", JSON, 400),
    ],
)
def test_a_request_is_read_as_fastapi_reads_it(
    body: str | bytes, query: str, content_type: str, status: int
) -> None:
    """The same answer and the same words, for the endpoint is documented by FastAPI."""
    replies = [
        client(route_class).post(
            f"/ask{query}",
            content=body,
            headers={"Content-Type": content_type, "X-Request-ID": "a"},
        )
        for route_class in (TaskRoute, APIRoute)
    ]
    assert [reply.status_code for reply in replies] == [status, status], replies[0].text
    assert replies[0].text == replies[1].text


def test_a_deadline_beyond_the_limit_is_refused() -> None:
    reply = client(TaskRoute).post("/ask?timeout_ms=20001", content=GOOD)
    assert reply.status_code == 422
    assert "allowed are 1 to 20000" in reply.json()["detail"]


@pytest.mark.parametrize("content_type", [None, "application/x-www-form-urlencoded"])
def test_json_is_taken_also_where_no_type_is_said(content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert client(TaskRoute).post("/ask", content=GOOD.encode(), headers=headers).text[0] == "'"


@pytest.mark.parametrize("name", ["m@", "m@x", "m@-1", "m@1.0", "m@1@2", "m@²", "m@" + "9" * 40])
def test_a_version_is_a_whole_number(name: str) -> None:
    """Anything else is the client's mistake, not a model that is missing."""
    with pytest.raises(InvalidParameter):
        split_model(name)

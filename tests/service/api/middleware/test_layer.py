"""The span of an HTTP request, and what of its trace is sent to the client and logged."""

import logging
from dataclasses import replace

import pytest
from fastapi import APIRouter, FastAPI

from paddlepool.observability.log import extras
from tests.service.api.fakes import Client, make_app, make_services

pytest.importorskip("opentelemetry.sdk", reason="pip install 'paddlepool[otel]'")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from paddlepool.contracts.errors import DeadlineExceeded
from paddlepool.observability.tracing import add_trace_id
from tests.observability.test_tracing import GIVEN, TRACE, Memory

SECRET = "correct horse battery staple"


def failing() -> APIRouter:
    router = APIRouter()

    async def late() -> None:
        raise DeadlineExceeded("no answer within the deadline of 5 ms", limit=0.005)

    async def broken() -> None:
        raise RuntimeError(SECRET)

    router.add_api_route("/late", late)
    router.add_api_route("/broken", broken)
    return router


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def app(memory: Memory) -> FastAPI:
    return make_app(failing(), services=replace(make_services(), tracing=memory.tracing))


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


@pytest.mark.parametrize(
    ("path", "name", "code", "outcome"),
    [
        ("/nothing", "GET", "not_found", StatusCode.UNSET),
        ("/late", "GET /late", "deadline_exceeded", StatusCode.ERROR),
        ("/broken", "GET /broken", "internal_error", StatusCode.ERROR),
    ],
)
def test_a_failed_request_says_what_failed(
    app: FastAPI, memory: Memory, path: str, name: str, code: str, outcome: StatusCode
) -> None:
    status = Client(app).get(path).status_code
    span = memory.spans()[name]
    assert attributes_of(span)["error.type"] == code
    assert attributes_of(span)["http.response.status_code"] == status
    assert span.status.status_code is outcome
    if path == "/late":
        assert span.status.description == "no answer within the deadline of 5 ms"
    assert SECRET not in span.to_json()


def test_log_lines_of_a_request_say_which_trace_it_is(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(add_trace_id)
    with caplog.at_level(logging.INFO):
        Client(app).get("/broken", headers={"traceparent": GIVEN})
    lines = {record.name: extras(record).get("trace_id") for record in caplog.records}
    assert lines.items() >= {("paddlepool.access", TRACE), ("paddlepool.error", TRACE)}


@pytest.mark.parametrize("path", ["/v2/health/live", "/metrics", "/docs"])
def test_probes_scrapes_and_pages_have_no_span(app: FastAPI, memory: Memory, path: str) -> None:
    """There would be more of them than of anything else."""
    Client(app).get(path, headers={"traceparent": GIVEN})
    assert memory.spans() == {}

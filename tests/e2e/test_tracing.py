"""Spans of a real server: what a collector gets over HTTP, and what one that is down costs."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.process import ROOT, Server, running
from tests.http_stub import Reply, http_stub

pytest.importorskip("opentelemetry.sdk", reason="pip install 'paddlepool[otel]'")
messages = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="pip install 'paddlepool[otel]'",
)

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]
TRACE, PARENT = "ab" * 16, "cd" * 8
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Collector:
    """Takes spans as an OTLP collector does."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Any] = []

    def answer(self, _path: str, body: bytes) -> Reply:
        self.requests.append(messages.ExportTraceServiceRequest.FromString(body))
        return 200, {}, b""

    def spans(self) -> list[Any]:
        scopes = [s for r in self.requests for group in r.resource_spans for s in group.scope_spans]
        return [span for scope in scopes for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    with http_stub(collector.answer) as collector.url:
        yield collector


@pytest.fixture
def repository(repository: Path) -> Path:
    """The model `tiny`, and the task of texts."""
    shutil.copytree(ROOT / "model_repo" / "emotion", repository / "emotion")
    return repository


def attributes(message: Any) -> dict[str, Any]:
    return {a.key: a.value.string_value or a.value.int_value for a in message.attributes}


def ask(client: httpx.Client, text: str, **headers: str) -> httpx.Response:
    return client.post("/sentiment", json={"inputs": text}, headers=headers)


def over_grpc(server: Server) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    address = str(server.wait_logged(event="listening for gRPC")["address"])
    image = triton.InferInput("image", [1, 3, 8, 8], "FP32")
    image.set_data_from_numpy(np.zeros((1, 3, 8, 8), np.float32))
    with triton.InferenceServerClient(address) as client:
        client.infer("tiny", [image], headers=CONTEXT)


def test_a_collector_gets_every_request(
    repository: Path, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last ones before the end; what is broken in a header is nowhere."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "emotions")
    settings = {"tracing": True, "grpc_port": 0}
    with running(repository, tmp_path, settings=settings) as server:
        with server.client() as client:
            completed = ask(client, "好难过", **CONTEXT, tracestate="a=1")
            hostile = ask(client, "好", traceparent="00-<script>", tracestate="=" * 600)
            refused = ask(client, "", **CONTEXT)
        over_grpc(server)
        line = server.wait_logged(request_id=completed.headers["x-request-id"])
        assert server.stop() == 0
        log = server.text()
    assert (completed.status_code, hostile.status_code, refused.status_code) == (200, 200, 422)
    assert completed.headers["x-trace-id"] == refused.headers["x-trace-id"] == TRACE
    assert "x-trace-id" not in hostile.headers
    assert line["trace_id"] == TRACE
    assert "opentelemetry" not in log
    assert "<script>" not in log
    [resource] = {r.resource_spans[0].resource.SerializeToString() for r in collector.requests}
    resource = collector.requests[0].resource_spans[0].resource
    assert attributes(resource)["service.name"] == "emotions"
    spans = collector.spans()
    stages = defaultdict(list)
    for span in spans:
        stages[span.parent_span_id.hex()].append(span)
    roots = stages[PARENT]
    assert {span.trace_id.hex() for span in roots} == {TRACE}
    summaries = {
        (
            root.name,
            attributes(root).get("error.type"),
            tuple(s.name for s in stages[root.span_id.hex()]),
        )
        for root in roots
    }
    timed = tuple(part.partition(";")[0] for part in completed.headers["server-timing"].split(", "))
    assert {(name, error, tuple(sorted(names))) for name, error, names in summaries} == {
        ("POST /sentiment", None, tuple(sorted(timed))),
        ("POST /sentiment", "text_empty", ()),
        ("inference.GRPCInferenceService/ModelInfer", None, ("infer", "queue")),
    }
    [other] = [span for span in stages[""] if span.name == "POST /sentiment"]
    assert other.trace_id.hex() != TRACE
    for root in (*roots, other):
        for span in stages[root.span_id.hex()]:
            assert root.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano
            assert attributes(span)["paddlepool.instance_group"] == "onednn"

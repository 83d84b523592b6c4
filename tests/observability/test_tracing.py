"""A request as spans: whose trace it is in, where its stages lie, what an error leaves."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install 'paddlepool[otel]'")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import InferResult
from paddlepool.observability.log import extras
from paddlepool.observability.tracing import (
    Delivery,
    Tracing,
    add_trace_id,
    open_tracing,
    trace_stages,
)
from tests.engine.fakes import ManualClock, infer_result, request_output

TRACE, PARENT = "ab" * 16, "cd" * 8
GIVEN = f"00-{TRACE}-{PARENT}-01"


class Memory:
    """A tracer whose spans stay here."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False, **options)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider, clock=self.clock)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def request(self, *headers: tuple[str, str]) -> Any:
        def values(name: str) -> list[str]:
            return [value for key, value in headers if key == name]

        return self.tracing.begin("POST", values, {"http.request.method": "POST"})

    def root(self, *headers: tuple[str, str]) -> ReadableSpan:
        """Of a request that has ended."""
        self.request(*headers).end("POST /echo", {}, error="", failed=False)
        return self.spans()["POST /echo"]


@pytest.fixture
def memory() -> Memory:
    return Memory()


def result(*, enqueued: float, queue: float, infer: float, **given: Any) -> InferResult:
    where = {"version": 3, "group": "native", "instance": 1, "batch_rows": 4}
    times = {"enqueued": enqueued, "queue_seconds": queue, "infer_seconds": infer}
    return infer_result(**{**where, **times, **given})


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def test_a_request_continues_the_trace_it_was_given(memory: Memory) -> None:
    root = memory.root(("traceparent", GIVEN), ("tracestate", "a=1"), ("tracestate", "b=2"))
    assert (trace_id(root), root.kind) == (TRACE, SpanKind.SERVER)
    assert root.parent is not None
    assert (f"{root.parent.span_id:016x}", root.parent.is_remote) == (PARENT, True)
    assert root.parent.trace_state.to_header() == "a=1,b=2"


IGNORED = {
    "empty": [""],
    "words": ["yes"],
    "zero trace": [f"00-{'0' * 32}-{PARENT}-01"],
    "zero parent": [f"00-{TRACE}-{'0' * 16}-01"],
    "capitals": [GIVEN.upper()],
    "version ff": ["ff" + GIVEN[2:]],
    "more in version 00": [GIVEN + "-01"],
    "no flags": [GIVEN[:-3]],
    "not hexadecimal": [GIVEN.replace("ab", "gh", 1)],
    "a script": [GIVEN + "\x00<script>"],
    "too long": ["01" + GIVEN[2:] + "-" + "x" * 100_000],
    "twice": [GIVEN, GIVEN],
}


@pytest.mark.parametrize("values", IGNORED.values(), ids=IGNORED)
def test_any_other_context_is_ignored(
    memory: Memory, values: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As the W3C's text says: a trace of its own begins, and nothing is said in the log."""
    span = memory.request(*(("traceparent", value) for value in values), ("tracestate", "a=1"))
    assert not span.has_parent
    span.end("POST /echo", {}, error="", failed=False)
    root = memory.spans()["POST /echo"]
    assert (root.parent, trace_id(root) == TRACE) == (None, False)
    assert caplog.records == []


@pytest.mark.parametrize("state", ["x" * 513, "=,=", "a=1," * 40], ids=["long", "broken", "many"])
def test_a_bad_tracestate_costs_only_itself(memory: Memory, state: str) -> None:
    root = memory.root(("traceparent", GIVEN), ("tracestate", state))
    assert trace_id(root) == TRACE
    assert root.parent is not None
    assert not root.parent.trace_state


def test_a_request_that_is_not_sampled_has_no_stages() -> None:
    memory = Memory(sampler=ALWAYS_OFF)
    request = memory.request(("traceparent", GIVEN))
    trace_stages(request_output({"queue": 1.0}), [result(enqueued=0.0, queue=1.0, infer=1.0)])
    record = logging.makeLogRecord({})
    assert add_trace_id(record)
    request.end("POST /echo", {}, error="", failed=False)
    assert (memory.spans(), vars(record)["trace_id"]) == ({}, TRACE)
    assert add_trace_id(after := logging.makeLogRecord({}))
    assert "trace_id" not in vars(after)


def test_stages_follow_each_other(memory: Memory) -> None:
    """Those before the queue end when the job is queued, the others when they are reported."""
    request = memory.request()
    stages = {"decode": 2.0, "preprocess": 1.0, "queue": 3.0, "infer": 4.0, "encode": 0.5}
    queued = memory.clock.now
    memory.clock.advance(8.0)
    trace_stages(request_output(stages), [result(enqueued=queued, queue=3.0, infer=4.0)])
    request.end("POST /echo", {}, error="", failed=False)
    spans = memory.spans()
    zero = spans["queue"].start_time
    assert zero is not None
    places = {
        name: ((spans[name].start_time or 0) - zero, (spans[name].end_time or 0) - zero)
        for name in stages
    }
    assert {name: (began / 1e9, ended / 1e9) for name, (began, ended) in places.items()} == {
        "decode": (-3.0, -1.0),
        "preprocess": (-1.0, 0.0),
        "queue": (0.0, 3.0),
        "infer": (3.0, 7.0),
        "encode": (7.5, 8.0),
    }


class Collector(SpanExporter):
    """Takes spans while `reason` is empty; says why not as the library does, a line each try."""

    def __init__(self) -> None:
        self.reason = ""
        self.stuck = threading.Event()
        self.stuck.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.stuck.wait()
        if not self.reason:
            return SpanExportResult.SUCCESS
        for line in (self.reason, "no attempt is left"):
            logging.getLogger("opentelemetry.exporter.test").error(line)
        return SpanExportResult.FAILURE


def test_a_collector_that_is_down_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector()
    delivery = Delivery(collector)
    with caplog.at_level(logging.INFO):
        collector.reason = "Connection refused"
        for _ in range(3):
            delivery.export([ReadableSpan("s")] * 5)
        collector.reason = ""
        for _ in range(2):
            delivery.export([ReadableSpan("s")])
    ours = [record for record in caplog.records if record.name == "paddlepool.tracing"]
    assert [(line.message, extras(line)) for line in ours] == [
        (
            "spans cannot be delivered and are lost until delivery works",
            {"reason": "Connection refused"},
        ),
        ("spans are delivered again", {"lost": 15}),
    ]


def test_a_collector_that_hangs_does_not_keep_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddlepool.observability.tracing.FLUSH_SECONDS", 0.05)
    collector, provider = Collector(), TracerProvider(shutdown_on_exit=False)
    collector.stuck.clear()
    provider.add_span_processor(SimpleSpanProcessor(collector))
    provider.shutdown = collector.stuck.wait  # type: ignore[assignment, method-assign]
    began = time.monotonic()
    Tracing(provider).close()
    assert time.monotonic() - began < 5
    collector.stuck.set()


WRONG = {
    "OTEL_TRACES_EXPORTER": ("zipkin", "otlp or console, not 'zipkin'"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("grpc", "expected http/protobuf, received 'grpc'"),
    "OTEL_BSP_MAX_QUEUE_SIZE": ("0", "must be a positive integer"),
    "OTEL_EXPORTER_OTLP_HEADERS": ("a=b,secret", "header 2 of 2 is not of the form name=value"),
}


@pytest.mark.parametrize("name", WRONG)
def test_variables_that_cannot_be_followed_end_the_start(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rather than spans that go nowhere. Headers carry keys: nothing of them is told."""
    value, words = WRONG[name]
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words) as refused:
        open_tracing()
    told = refused.value.message + "".join(capfd.readouterr()) + caplog.text
    assert "secret" not in told

"""OpenTelemetry spans of a request (extra `otel`): the request itself, and its stages below it.

Spans go to an OTLP collector over HTTP, as the standard OTEL_* variables configure.

Tracing reads no clock between stages: it computes their starts and ends from their durations. Of
the stages before the queue, the last one ends at the moment when the jobs are queued. Of those
after the run, the last one ends at the moment when the stages are reported. The spans of stages are
made when the reply has been sent. A thread exports all spans.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paddlepool import __version__
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Clock, InferResult, RequestOutput
from paddlepool.contracts.reasons import STAGES, START_UP

MODEL, VERSION = "paddlepool.model.name", "paddlepool.model.version"
GROUP, INSTANCE = "paddlepool.instance_group", "paddlepool.instance"
ROWS = "paddlepool.batch.rows"
BEFORE = STAGES[: STAGES.index(START_UP)]
"""Stages before a request's jobs are queued."""
OF_JOBS = (START_UP, "queue", "infer")

TRACEPARENT = "traceparent"
MOST_CHARACTERS = 512
"""Maximum length of `traceparent`, or of all `tracestate` together; longer ones are ignored."""
FLUSH_SECONDS = 3.0
"""Maximum wait for unsent spans when the server ends; the collector may be down."""

Values = Callable[[str], Sequence[str]]
"""A function that returns all values of a header, by its name."""

Place = tuple[str, float, float, Mapping[str, str | int]]
"""A stage: name, start and end in seconds on the jobs' clock, and its own attributes."""


class RequestSpan:
    """The span of one request; begin it and end it in the same asyncio task."""

    def __init__(self, span: Span, tracing: Tracing, *, has_parent: bool) -> None:
        self.trace_id = f"{span.get_span_context().trace_id:032x}"
        self.has_parent = has_parent
        """True if the client began the trace."""
        self.span = span
        self.tracing = tracing
        self.where: Mapping[str, str | int] = {}
        self.places: Sequence[Place] = ()

    def end(
        self,
        name: str,
        attributes: Mapping[str, str | int],
        *,
        error: str,
        failed: bool,
        why: str = "",
    ) -> None:
        """End the span, and make the spans of the stages that trace_stages() has reported.

        `name` replaces the name with which the span began, and `attributes` are added to it.
        `error` is the error's code, or empty; `why` is its text for people. `failed` means that the
        server caused the error, not the client.
        """
        CURRENT.set(None)
        span = self.span
        if not span.is_recording():
            return
        span.update_name(name)
        span.set_attributes(attributes)
        if error:
            span.set_attribute("error.type", error)
        if failed:
            span.set_status(StatusCode.ERROR, why or None)
        span.set_attributes(self.where)
        parent = set_span_in_context(span, Context())
        epoch = time.time_ns() - round(1e9 * self.tracing.clock())
        for stage, began, ended, own in self.places:
            start, attributes = epoch + round(1e9 * began), {**self.where, **own}
            self.tracing.tracer.start_span(
                stage, parent, attributes=attributes, start_time=start
            ).end(epoch + round(1e9 * ended))
        span.end()


CURRENT: ContextVar[RequestSpan | None] = ContextVar("request span", default=None)


class Tracing:
    """Makes the spans of requests; for one event loop."""

    def __init__(self, provider: TracerProvider, *, clock: Clock = time.monotonic) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer("paddlepool", __version__)
        self.clock = clock
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, values: Values, attributes: Mapping[str, str]) -> RequestSpan:
        """Start the span of a request; CURRENT has it until its end().

        `values` returns the request's headers, which may name the client's trace.
        """
        parent = self._parent(values)
        span = self.tracer.start_span(name, parent, SpanKind.SERVER, attributes)
        has_parent = get_current_span(parent).get_span_context().is_valid
        request = RequestSpan(span, self, has_parent=has_parent)
        CURRENT.set(request)
        return request

    def _parent(self, values: Values) -> Context:
        """Return the parent span that the headers name, or an empty context.

        A repeated traceparent is ignored, and so is a header of more than MOST_CHARACTERS.
        """
        headers = {name: list(values(name)) for name in (TRACEPARENT, "tracestate")}
        if len(headers[TRACEPARENT]) != 1:
            return Context()
        fit = {k: v for k, v in headers.items() if len(",".join(v)) <= MOST_CHARACTERS}
        return self._propagator.extract(fit, Context())

    def close(self) -> None:
        """Send the remaining spans; return after FLUSH_SECONDS even if some are not sent."""
        # shutdown() waits half a minute, or longer if the collector does not answer.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(FLUSH_SECONDS)


def trace_stages(output: RequestOutput, results: Sequence[InferResult]) -> None:
    """Store the stages of the current request in its span; without a recording span, do nothing."""
    request = CURRENT.get()
    if request is not None and request.span.is_recording():
        request.where = {MODEL: output.model, VERSION: output.version, GROUP: output.group}
        request.places = _places(output.stages, results, now=request.tracing.clock())


def _places(
    stages: Mapping[str, float], results: Sequence[InferResult], *, now: float
) -> list[Place]:
    """Return each stage's start and end on the jobs' clock.

    Of the stages after the run, the last one ended at `now`. `results` is not empty. Jobs of one
    request run in parallel: each has a queue stage and a run of its own.
    """
    places: list[Place] = []
    queued = min(result.enqueued for result in results)
    for names, end in (
        ([name for name in stages if name in BEFORE], queued),
        ([name for name in stages if not (name in BEFORE or name.endswith(OF_JOBS))], now),
    ):
        for name in reversed(names):
            places.append((name, end - stages[name], end, {}))
            end -= stages[name]
    for result in results:
        own: dict[str, str | int] = {
            MODEL: result.model,  # a part's, if the request's model is composed
            VERSION: result.version,
            GROUP: result.group,
            INSTANCE: result.instance,
            ROWS: result.batch_rows,
        }
        durations = (result.start_up_seconds, result.queue_seconds, result.infer_seconds)
        at = result.enqueued
        for name, seconds in zip(OF_JOBS, durations, strict=True):
            if seconds or name != START_UP:
                places.append((name, at, at + seconds, own))
            at += seconds
    return places


def add_trace_id(record: logging.LogRecord) -> bool:
    """Logging filter that drops nothing: adds the trace ID to the lines of a traced request."""
    if (request := CURRENT.get()) is not None:
        vars(record)["trace_id"] = request.trace_id
    return True


EXPORTERS: Mapping[str, type[SpanExporter]] = {
    "otlp": OTLPSpanExporter,
    "console": ConsoleSpanExporter,
}
PROTOCOL = "http/protobuf"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\s*=[\x20-\x7e]*")

log = logging.getLogger("paddlepool.tracing")


def open_tracing() -> Tracing:
    """Start exporting spans, and add trace IDs to the lines of the present log handlers.

    Raises ConfigError if OTEL_* variables are malformed or request something unsupported.
    """
    # The library would log each attempt to send, and print malformed headers including their keys.
    library = logging.getLogger("opentelemetry")
    library.addHandler(logging.NullHandler())
    library.propagate = False
    for variable in HEADERS:
        headers = os.environ.get(variable, "").split(",")
        for place, header in enumerate(headers, start=1):
            if header.strip() and not HEADER.fullmatch(header.strip()):
                # The header itself is not repeated: it is most likely a key.
                raise ConfigError(
                    f"{variable}: header {place} of {len(headers)} is not of the form name=value"
                )
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name not in EXPORTERS:
        raise ConfigError(f"OTEL_TRACES_EXPORTER: expected {' or '.join(EXPORTERS)}, not {name!r}")
    chosen = next((variable for variable in PROTOCOLS if os.environ.get(variable)), None)
    if chosen and os.environ[chosen] != PROTOCOL:
        raise ConfigError(f"{chosen}: expected {PROTOCOL}, received {os.environ[chosen]!r}")
    resource = Resource.create({"service.name": "paddlepool", "service.version": __version__})
    provider = TracerProvider(
        resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    try:
        delivery = Delivery(EXPORTERS[name]())
        provider.add_span_processor(BatchSpanProcessor(delivery))
    except ValueError as error:
        raise ConfigError(f"OTEL_*: {error}") from None
    for handler in logging.getLogger().handlers:
        handler.addFilter(add_trace_id)
    return Tracing(provider)


class Delivery(SpanExporter):
    """Passes spans to `exporter`; logs when delivery begins to fail, and when it works again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._reason = _FirstMessage()
        self._lost = 0
        logging.getLogger("opentelemetry.exporter").addHandler(self._reason)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._reason.message = ""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                log.warning(
                    "spans cannot be delivered and are lost until delivery works",
                    extra={"reason": self._reason.message},
                )
            self._lost += len(spans)
        elif self._lost:
            log.warning("spans are delivered again", extra={"lost": self._lost})
            self._lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _FirstMessage(logging.Handler):
    """Keeps the first log line after `message` is cleared; later lines only report retries."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = self.message or record.getMessage()

"""Exports spans to an OTLP collector over HTTP, as the standard OTEL_* variables configure.

One line is logged when the collector stops answering, and one when it answers again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)

from app import __version__
from app.contracts.errors import ConfigError
from app.observability.tracing import Tracing, add_trace_id

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
    """Start exporting spans, and add trace IDs to log lines.

    Raises ConfigError if the variables request something that is not supported.
    """
    # The library would log each attempt to send, and print malformed headers including their keys.
    library = logging.getLogger("opentelemetry")
    library.addHandler(logging.NullHandler())
    library.propagate = False
    _check_headers()
    resource = Resource.create({"service.name": "paddlepool", "service.version": __version__})
    provider = TracerProvider(
        resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    try:
        delivery = Delivery(EXPORTERS[_exporter()]())
        provider.add_span_processor(BatchSpanProcessor(delivery))
    except ValueError as error:
        raise ConfigError(f"OTEL_*: {error}") from None
    for handler in logging.getLogger().handlers:
        handler.addFilter(add_trace_id)
    return Tracing(provider)


def _exporter() -> str:
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name not in EXPORTERS:
        raise ConfigError(f"OTEL_TRACES_EXPORTER: expected {' or '.join(EXPORTERS)}, not {name!r}")
    said = next((each for each in PROTOCOLS if os.environ.get(each)), None)
    if said and os.environ[said] != PROTOCOL:
        raise ConfigError(f"{said}: expected {PROTOCOL}, received {os.environ[said]!r}")
    return name


def _check_headers() -> None:
    """Raise ConfigError for a malformed header, without repeating it: it is most likely a key."""
    for variable in HEADERS:
        headers = os.environ.get(variable, "").split(",")
        for place, header in enumerate(headers, start=1):
            if header.strip() and not HEADER.fullmatch(header.strip()):
                raise ConfigError(
                    f"{variable}: header {place} of {len(headers)} is not of the form name=value"
                )


class Delivery(SpanExporter):
    """Logs once, with the reason, when spans cannot be delivered, and once when they can again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._reason = _FirstWords()
        self._lost = 0
        logging.getLogger("opentelemetry.exporter").addHandler(self._reason)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._reason.words = ""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                log.warning(
                    "spans cannot be delivered, and are lost until they can",
                    extra={"reason": self._reason.words},
                )
            self._lost += len(spans)
        elif self._lost:
            log.warning("spans are delivered again", extra={"lost": self._lost})
            self._lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _FirstWords(logging.Handler):
    """Keeps the first line, which has the reason; the last only reports that no attempt is left."""

    words = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.words = self.words or record.getMessage()

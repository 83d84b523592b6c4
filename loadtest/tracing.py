"""What tracing costs: the server without it and with it, interleaved, and the spans alone.

    .venv/bin/python loadtest/tracing.py [--seconds 3] [--rounds 8]

Spans of every request go to a collector, a process that throws them away. How far a ratio is below
1 is what tracing costs; where it is off, `loadtest/before_after.py` compares with a checkout that
has none.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import timeit
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from before_after import SETTINGS, alternated, measures, show
from cases import read_cases
from harness import HOST, ROOT, running_server
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from app.contracts.ports import InferResult
from app.observability.tracing import Tracing
from app.repository.layout import ModelRepository

KINDS = ("one client", "busy")
TIMES = 5_000


class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve_sink(told: Pipe) -> None:
    server = HTTPServer((HOST, 0), Sink)
    told.send(server.server_port)
    server.serve_forever()


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Its address."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve_sink, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://{HOST}:{ours.recv()}"
    finally:
        process.terminate()


def spans() -> Iterator[str]:
    """Microseconds of the Python that a request runs, before and after its reply."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(SpanExporter(), schedule_delay_millis=3.6e6))
    tracing = Tracing(provider)
    result = InferResult(
        outputs={},
        model="emotion",
        version=1,
        group="onednn",
        instance=0,
        enqueued=0.0,
        queue_seconds=0.001,
        infer_seconds=0.01,
        batch_rows=1,
    )
    stages = {"preprocess": 0.001, "queue": 0.001, "infer": 0.01, "postprocess": 0.001}
    attributes = {"http.request.method": "POST", "url.scheme": "http"}
    request = tracing.begin("POST", lambda _: (), attributes)

    def before() -> None:
        nonlocal request
        request = tracing.begin("POST", lambda _: (), attributes)
        request.stages_done(stages, [result])

    def whole() -> None:
        before()
        request.end("POST /sentiment", {}, error="", failed=False)

    for name, work in (("before the reply", before), ("in all, with its 4 stages", whole)):
        seconds = min(timeit.repeat(work, number=TIMES, repeat=5)) / TIMES
        yield f"spans of a text, {name}: {1e6 * seconds:.1f} µs"
    test = min(timeit.repeat("a.b is None", "class a: b = None", number=TIMES, repeat=5)) / TIMES
    yield f"without tracing, the test of one attribute (gRPC only): {1e9 * test:.0f} ns"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of phases of each kind")
    arguments = parser.parse_args()
    for line in spans():
        print(line)
    kinds = {name: each for name, each in measures(arguments.seconds).items() if name in KINDS}
    cases = read_cases(ModelRepository(arguments.repository), requests=1)
    with collector() as url, contextlib.ExitStack() as stack:
        environments: dict[str, dict[str, str]] = {
            "before": {},
            "after": {"PADDLEPOOL_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": url},
        }
        servers = {
            name: stack.enter_context(
                running_server(arguments.repository, environment=SETTINGS | environment)
            )
            for name, environment in environments.items()
        }
        show(alternated(servers, cases, kinds, rounds=arguments.rounds))


if __name__ == "__main__":
    main()

"""The comparison with other servers: what it counts, and the page that it writes."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import count
from typing import ClassVar

import benchmark
import pytest
from benchmark import flood, page, watched
from harness import ROOT, Server, request

from tests.loadtest.listening import listening


class Handler(BaseHTTPRequestHandler):
    """Answers requests with the next of `statuses`; 0 closes the connection without an answer."""

    protocol_version = "HTTP/1.1"
    statuses: ClassVar[Iterator[int]]

    def do_GET(self) -> None:
        if not (status := next(self.statuses)):
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def port() -> Iterator[int]:
    with listening(Handler) as port:
        yield port


def test_a_flood_counts_answers_refusals_and_failures(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "FLOOD_SECONDS", 0.5)
    Handler.statuses = iter([200, 200, 503, 429, 0, 500, *[200] * 4, 500, 200])
    found = flood(Server(port, 0), request("GET", "/"), rate=20.0)
    assert (found["sent"], found["answered"], found["refused"], found["failed"]) == (10, 6, 2, 2)
    assert 0 < found["p50_seconds"] <= found["p99_seconds"] < 5
    assert found["next_seconds"] >= 0.05, "asked again after the 500"


def test_a_watch_counts_failures_and_the_longest_wait(port: int) -> None:
    Handler.statuses = (503 if 3 <= number < 8 else 200 for number in count())
    with watched(port, request("GET", "/"), clients=1) as watch:
        time.sleep(1.0)
    found = watch.figures()
    assert found["failed"] == 1, "five attempts of one client"
    assert found["answered"] > 5
    assert 0.25 <= found["longest_gap_seconds"] < 1.0


def test_the_published_page_says_what_its_figures_say() -> None:
    """The best server of a column is bold, if there is one; bare loops do not compete."""
    figures = json.loads((ROOT / "docs" / "benchmark.json").read_text("utf-8"))
    assert (ROOT / "docs" / "benchmark.md").read_text("utf-8") == page(figures)

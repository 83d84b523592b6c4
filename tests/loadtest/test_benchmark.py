"""The comparison with other servers: what it counts, and the page that it writes."""

import io
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import count
from typing import Any, ClassVar

import benchmark
import pytest
from benchmark import bomb, flood, page, watched
from harness import ROOT, Server, request
from PIL import Image

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


def test_the_bomb_is_a_png_of_400_megapixels() -> None:
    data = bomb()
    assert len(data) < 100_000
    size = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        assert Image.open(io.BytesIO(data)).size == (20_000, 20_000)
    finally:
        Image.MAX_IMAGE_PIXELS = size


def report() -> dict[str, Any]:
    def masks(name: str, seconds: float) -> dict[str, Any]:
        return {
            "name": name,
            "seconds": [seconds, seconds * 2, seconds * 3],
            "rates": {"4 clients": [1 / seconds]},
            "per_second": {"4 clients": 1 / seconds},
            "p50_seconds": seconds * 2,
            "memory_bytes": [100e6 / seconds],
            "agreement": "alpha within 0.30 of 255 levels",
        }

    def trouble(failed: int) -> dict[str, Any]:
        watched = {"answered": 9, "failed": failed, "longest_gap_seconds": failed + 1.0}
        flooded: dict[str, Any] = {
            "sent": 20,
            "answered": 20 - failed,
            "refused": 0,
            "failed": failed,
        }
        flooded |= {"per_second": 2.0, "p99_seconds": 1.5, "next_seconds": None if failed else 0.5}
        return {
            "starts": [1.0, 2.0, 3.0],
            "flood": flooded,
            "killed": watched | {"per_second_afterwards": 4.0},
            "hostile": watched
            | {"status": {"bomb": 413, "x": 0 if failed < 4 else 500}, "memory_growth_bytes": 1e9},
            "changed": watched | {"by": "restart", "seconds": 2.0},
        }

    return {
        "machine": "a processor, 2 cores",
        "cores": 2,
        "rounds": 3,
        "seconds": 2.0,
        "repeats": 2,
        "masks": [
            masks("Paddlepool /segment (onednn)", 0.1),
            masks("rembg", 0.2),
            masks("bare loop", 0.05),
        ],
        "trouble": {"Paddlepool": [trouble(0)] * 2, "rembg": [trouble(3), trouble(5)]},
    }


def test_the_best_server_of_a_column_is_bold_and_bare_loops_do_not_compete() -> None:
    text = page({"a processor": report()})
    assert "| Paddlepool (onednn) | **200 ms (100–300)** | **10** | 1,000 MB | 0.30 |" in text
    assert "| rembg | 400 ms (200–600) | 5 | **500 MB** | 0.30 |" in text
    assert "| bare loop | 100 ms (50–150) | 20 | 2,000 MB | 0.30 |" in text
    assert "| Paddlepool | 2 s (1–3) | 2 | 100 % | 0 % | 0 % | 1.5 s | **0.5 s** |" in text
    assert "| rembg | 2 s (1–3) | 2 | 80 % (75–85) | 0 % | 20 % (15–25) | 1.5 s | none |" in text
    assert "| Paddlepool | **0** | **1 s** | 4 |" in text
    assert "| rembg | 413, 0/500 | 1,000 MB | 5 s (4–6) |" in text


def test_the_published_page_says_what_its_figures_say() -> None:
    figures = json.loads((ROOT / "docs" / "benchmark.json").read_text("utf-8"))
    assert (ROOT / "docs" / "benchmark.md").read_text("utf-8") == page(figures)

"""The comparison with other servers: what it counts, and the page that it writes."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

import benchmark
import pytest
from benchmark import flood, page, watched
from harness import ROOT, request

from tests.http_stub import as_json, http_stub


@contextmanager
def answering(statuses: Iterable[int]) -> Iterator[int]:
    """The port of a server that answers with these, in turn; 0 closes the connection instead."""
    left = iter(statuses)
    with http_stub(lambda *_: as_json({}, status) if (status := next(left)) else None) as url:
        yield int(url.rpartition(":")[2])


def test_a_flood_counts_answers_refusals_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "FLOOD_SECONDS", 0.5)
    with answering([200, 200, 503, 429, 0, 500, *[200] * 4, 500, 200]) as port:
        row = flood(port, request("GET", "/"), rate=20.0)
    assert (row["sent"], row["answered"], row["refused"], row["failed"]) == (10, 6, 2, 2)
    assert 0 < row["p99_seconds"] < 5
    assert row["next_seconds"] >= 0.05, "asked again after the 500"


def test_a_watch_counts_failures_and_the_longest_wait() -> None:
    statuses = (503 if 3 <= number < 8 else 200 for number in count())
    with answering(statuses) as port, watched(port, request("GET", "/"), clients=1) as row:
        time.sleep(1.0)
    assert row["failed"] == 1, "five attempts of one client"
    assert row["answered"] > 5
    assert 0.25 <= row["longest_gap_seconds"] < 1.0


def test_the_published_page_says_what_its_figures_say() -> None:
    """The best server of a column is bold, if there is one; bare loops do not compete."""
    figures = json.loads((ROOT / "docs" / "benchmark.json").read_text("utf-8"))
    assert (ROOT / "docs" / "benchmark.md").read_text("utf-8") == page(figures)

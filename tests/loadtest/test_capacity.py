"""The arithmetic from measured figures to replicas, and the page that shows it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from capacity import balanced_replicas, sized
from capacity_page import CHOSEN, FLOAT32, ceilings, page, replicas_for
from harness import ROOT
from PIL import Image

PAGE = ROOT / "docs" / "capacity.md"


def row(request: str = "1 text", **given: Any) -> dict[str, Any]:
    return {
        "cores": 2,
        "precision": CHOSEN,
        "memory": 1.5e9,
        "request": request,
        "group": "onnxruntime_int8",
        "per_second": 100.0,
        "cpu_seconds": 0.02,
        "api_cpu_seconds": 0.001,
        "proxy_cpu_seconds": 0.0001,
        "bytes": 1000,
    } | given


@pytest.mark.parametrize(
    ("wanted", "per_second", "replicas"), [(70, 100.0, 1), (71, 100.0, 2), (10_000, 7.5, 1905)]
)
def test_replicas_are_planned_to_seven_tenths(
    wanted: int, per_second: float, replicas: int
) -> None:
    """And rounded up."""
    assert replicas_for(wanted, per_second) == replicas


def test_each_part_ends_where_its_time_or_its_link_is_full() -> None:
    """Of one core, and of 10 Gbit/s."""
    found = ceilings(row(), row(proxy_cpu_seconds=0.0002, bytes=10))
    assert {name: round(value) for name, value in found.items()} == {
        "API process": 1000,
        "balancer": 5000,
        "network": 1_250_000,
    }


def test_the_page_shows_the_sums() -> None:
    """Replicas with their division, memory, and which part is full next."""
    rows = [row(cores=1, precision=FLOAT32, per_second=20.0), row(bytes=500_000)]
    report = {
        "machine": "a machine",
        "replicas": rows,
        "api": [row("GET /", per_second=900.0)],
        "proxy": [row()],
        "balanced": balanced_replicas(),
    }
    text = page(report)
    assert "| 1 text | 20.0 | 100 (onnxruntime_int8) |" in text
    assert "| 1 text, 1,000 a second | 1,000 / (0.7 × 100) = 15 | 30 | 22 | 0.10 | 4.000 |" in text
    assert "whose API process\n  is 10% busy then" in text
    assert "takes 10 replicas" in text
    assert "its link is next, at 2,500 a second,\n  which are 25.0 replicas" in text


def test_a_picture_has_the_size_that_is_asked_for() -> None:
    image = Image.open(io.BytesIO(sized(0.3)))
    assert image.width * image.height == pytest.approx(300_000, rel=0.01)


def test_the_committed_page_is_that_of_its_figures() -> None:
    """Nobody has written into it."""
    figures = json.loads(PAGE.with_suffix(".json").read_text("utf-8"))
    assert page(figures) == PAGE.read_text("utf-8")

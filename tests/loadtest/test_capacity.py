"""The committed page, made again from its figures, and the pictures that were sent."""

import io
import json
import math
import re

import pytest
from capacity import latency, other_machines, page, sized
from harness import ROOT, Reply
from PIL import Image

PAGE = ROOT / "docs" / "capacity.md"


def test_a_picture_has_the_size_that_is_asked_for() -> None:
    image = Image.open(io.BytesIO(sized(0.3)))
    assert image.width * image.height == pytest.approx(300_000, rel=0.01)


def test_the_committed_page_is_that_of_its_figures() -> None:
    figures = json.loads(PAGE.with_suffix(".json").read_text("utf-8"))
    assert page(figures) == PAGE.read_text("utf-8")


def test_sums_are_of_the_figures_that_are_printed() -> None:
    sums = re.findall(r"([\d,]+) / \(0\.7 × ([\d.,]+)\) = ([\d,]+) ", PAGE.read_text("utf-8"))
    assert len(sums) == 9
    for numbers in sums:
        wanted, rate, count = (float(number.replace(",", "")) for number in numbers)
        assert count == math.ceil(wanted / (0.7 * rate))


def test_a_million_requests_cost_what_their_cores_do() -> None:
    figures = json.loads(PAGE.with_suffix(".json").read_text("utf-8"))
    row = re.compile(
        r"^\| mask of 1 MP, 100 a second .* × ([\d.]+)\) .* ([\d.]+) \|$", re.MULTILINE
    )
    [(rate, cost)] = row.findall(page(figures, price=0.4))
    assert cost == f"{1e6 / 3600 * 2 * 0.4 / (0.7 * float(rate)):.1f}"


def test_a_refused_request_counts_as_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [Reply(200, {}, b"", 0.1)] * 97 + [Reply(503, {}, b"", 0.001)] * 3
    monkeypatch.setattr("capacity.arrivals", lambda *_, **__: ended)
    assert latency(0, b"", rate=40, seconds=1) == [[0.1, 30.0]] * 3


def test_figures_of_another_processor_stay_and_those_of_this_one_are_replaced() -> None:
    before = {
        "machine": "A, 2 cores; Paddlepool 1.0.0",
        "replicas": [1],
        "others": {"B, 2 cores; Paddlepool 0.1.0": [2]},
    }
    others = {"A, 2 cores; Paddlepool 1.0.0": [1], "B, 2 cores; Paddlepool 0.1.0": [2]}
    assert other_machines(before, {"machine": "C; Paddlepool 1.0.0"}) == others
    assert other_machines(before, {"machine": "A, 2 cores; Paddlepool 1.1.0"}) == {
        "B, 2 cores; Paddlepool 0.1.0": [2]
    }

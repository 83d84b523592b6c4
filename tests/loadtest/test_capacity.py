"""The committed page, made again from its figures, and the pictures that were sent."""

import io
import json
import math
import re

import pytest
from capacity import latency, other_machines, page, sized
from harness import ROOT, Reply, Server
from PIL import Image

PAGE = ROOT / "docs" / "capacity.md"


def test_a_picture_has_the_size_that_is_asked_for() -> None:
    image = Image.open(io.BytesIO(sized(0.3)))
    assert image.width * image.height == pytest.approx(300_000, rel=0.01)


def test_the_committed_page_is_that_of_its_figures() -> None:
    figures = json.loads(PAGE.with_suffix(".json").read_text("utf-8"))
    assert page(figures) == PAGE.read_text("utf-8")


def test_sums_are_of_the_figures_that_are_printed() -> None:
    found = re.findall(r"([\d,]+) / \(0\.7 × ([\d.,]+)\) = ([\d,]+) ", PAGE.read_text("utf-8"))
    assert len(found) == 9
    for sum_ in found:
        wanted, rate, count = (float(each.replace(",", "")) for each in sum_)
        assert count == math.ceil(wanted / (0.7 * rate))


def test_a_start_percentiles_and_a_price_are_on_the_page() -> None:
    figures = json.loads(PAGE.with_suffix(".json").read_text("utf-8"))
    row = next(
        each for each in figures["replicas"] if (each["cores"], each["precision"]) == (2, "chosen")
    )
    row["latency"] = [[0.1, 0.2], [0.3, 0.4], [0.5, 30]]
    figures["start"] = {"seconds": 9.87, "api_cpu_seconds": 2, "child_cpu_seconds": [0.5, 3]}
    text = page(figures, price=0.4)
    assert f"| {row['request']} | 100, 200 | 300, 400 | 500, 30000 |" in text
    assert "ready after 9.9 s. The API process uses 2.0 s" in text
    assert "use 0.5, 3.0 s." in text
    costs = [float(each) for each in re.findall(r"([\d.]+) \|$", text, re.MULTILINE)]
    million = 1e6 / 3600 * 2 * 0.4 / (0.7 * 4.34)
    assert pytest.approx(million, abs=0.1) in costs


def test_a_refused_request_counts_as_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [Reply(200, {}, b"", 0.1)] * 97 + [Reply(503, {}, b"", 0.001)] * 3
    monkeypatch.setattr("capacity.arrivals", lambda *_, **__: ended)
    assert latency(Server(0, 0), b"", rate=40, seconds=1) == [[0.1, 30.0]] * 3


def test_figures_of_another_processor_stay_and_those_of_this_one_are_replaced() -> None:
    before = {
        "machine": "A, 2 cores; Paddlepool 1.0.0",
        "replicas": [1],
        "others": {"B, 2 cores; Paddlepool 0.1.0": [2]},
    }
    kept = {"A, 2 cores; Paddlepool 1.0.0": [1], "B, 2 cores; Paddlepool 0.1.0": [2]}
    assert other_machines(before, {"machine": "C; Paddlepool 1.0.0"}) == kept
    assert other_machines(before, {"machine": "A, 2 cores; Paddlepool 1.1.0"}) == {
        "B, 2 cores; Paddlepool 0.1.0": [2]
    }

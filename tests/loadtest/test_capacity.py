"""The committed page, made again from its figures, and the pictures that were sent."""

import io
import json
import math
import re

import pytest
from capacity import page, sized
from harness import ROOT
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


def test_a_price_is_on_the_page() -> None:
    figures = json.loads(PAGE.with_suffix(".json").read_text("utf-8"))
    text = page(figures, price=0.4)
    costs = [float(each) for each in re.findall(r"([\d.]+) \|$", text, re.MULTILINE)]
    million = 1e6 / 3600 * 2 * 0.4 / (0.7 * 12.2)
    assert pytest.approx(million, abs=0.1) in costs

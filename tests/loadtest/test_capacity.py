"""The committed page, made again from its figures, and the pictures that were sent."""

import io
import json

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

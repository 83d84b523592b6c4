"""The Python client against a real server: what it knows of it."""

import io

import pytest
from PIL import Image

from paddlepool_client import Client
from tests.e2e.conftest import KEY
from tests.e2e.process import ROOT, Server

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

PHOTO = ROOT / "docs" / "images" / "astronaut.jpg"


def mode(encoded: bytes) -> str:
    with Image.open(io.BytesIO(encoded)) as picture:
        return picture.mode


def test_a_cutout_and_an_emotion_blocking(keyed_server: Server) -> None:
    with Client(keyed_server.url, api_key=KEY) as client:
        assert client.ready()
        cutout = client.segment(PHOTO)
        [[emotion, *others]] = client.sentiment(["今天真开心！"])
    with Image.open(PHOTO) as photo:
        assert cutout.size == photo.size
    assert (mode(cutout.content), cutout.content_type) == ("RGBA", "image/png")
    assert cutout.foreground[2] > 0
    assert cutout.model.startswith("u2netp@")
    assert cutout.timings["infer"] > 0
    assert cutout.request_id
    assert (emotion.label, emotion.label_zh) == ("happy", "快乐")
    assert sum(each.score for each in (emotion, *others)) == pytest.approx(1, abs=1e-5)

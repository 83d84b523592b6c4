"""Backgrounds, framing and shadows over HTTP, with hostile second pictures and good neighbours."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.codecs import pictures
from tests.e2e.process import Server

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

PHOTO = pictures.encoded(pictures.photo(320, 240), "PNG")
BACKGROUND = pictures.encoded(pictures.corners(640, 480), "PNG")


@pytest.fixture(scope="module")
def client(full_server: Server) -> Iterator[httpx.Client]:
    with full_server.client() as client:
        yield client


def post(client: httpx.Client, background: bytes | None = None, **fields: str) -> httpx.Response:
    files = {"file": ("a", PHOTO)} | ({} if background is None else {"bg_image": ("b", background)})
    return client.post("/segment", files=files, data=fields)


def pixels_of(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.asarray(Image.open(io.BytesIO(response.content)))


def test_each_control_does_what_it_says(client: httpx.Client) -> None:
    """One request for each, against the plain result of the same picture."""
    cutout = post(client)
    whole = pixels_of(cutout)
    top, left, width, height = (
        int(cutout.headers[f"x-foreground-{side}"]) for side in ("top", "left", "width", "height")
    )
    inside = whole[top : top + height, left : left + width]

    on_picture = pixels_of(post(client, BACKGROUND, output="composite"))
    assert on_picture[3, 3].tolist() == [220, 20, 20]
    assert on_picture[-3, 3].tolist() == [20, 20, 220]

    tall = pictures.encoded(pictures.corners(240, 480), "PNG")
    contained = pixels_of(
        post(client, tall, output="composite", bg_fit="contain", bg_color="black", shadow="none")
    )
    assert not contained[:5, :90].any()
    assert contained[3, 110].tolist() == [220, 20, 20]

    blurred = pixels_of(post(client, output="composite", bg_blur="5%")).astype(int)
    original = np.asarray(pictures.photo(320, 240)).astype(int)
    assert np.abs(blurred[0] - original[0]).mean() < 12
    assert (
        np.abs(np.diff(blurred[0], axis=0)).mean() < np.abs(np.diff(original[0], axis=0)).mean() / 5
    )

    margins = pixels_of(post(client, crop="true", crop_margin="7px 9px"))
    assert margins.shape == (height + 14, width + 18, 4)
    assert np.array_equal(inside, margins[7:-7, 9:-9])

    corner = pixels_of(post(client, position="100% 0%"))
    assert np.array_equal(inside, corner[:height, -width:])
    assert not corner[height:].any()

    small = pixels_of(post(client, scale="20%", output="mask"))
    rows = np.flatnonzero(small.max(axis=1) > 16)
    assert abs(rows[-1] + 1 - rows[0] - 240 * 0.2) <= 2

    shadow = pixels_of(post(client, shadow="drop", shadow_opacity="80"))
    assert shadow[..., 3].astype(int).sum() > 1.02 * whole[..., 3].astype(int).sum()
    assert (shadow[..., 3] >= whole[..., 3]).all()


@pytest.mark.parametrize(
    ("background", "fields", "status", "says"),
    [
        (BACKGROUND, {}, 422, "bg_image needs output=composite"),
        (BACKGROUND, {"output": "composite", "bg_blur": "2%"}, 422, "leave out bg_image"),
        (None, {"crop": "true", "crop_margin": "501px"}, 422, "received 501px"),
        (b"secret, no picture", {"output": "composite"}, 415, "bg_image: the file is"),
        (pictures.blank_png(16_385, 2), {"output": "composite"}, 422, "bg_image: the picture is"),
        (bytes(13 << 20), {"output": "composite"}, 413, "the limit is 12582912"),
    ],
    ids=["output", "blur", "margin", "no-picture", "too-long", "13-MiB"],
)
def test_what_cannot_be_done_is_said(
    client: httpx.Client, background: bytes | None, fields: dict[str, str], status: int, says: str
) -> None:
    """With the limit, and the name of the picture that is meant; nothing is repeated."""
    response = post(client, background, **fields)
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]
    assert "secret" not in response.text

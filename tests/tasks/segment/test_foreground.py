"""Foreground colours, against mixtures whose parts are known."""

from dataclasses import asdict

import numpy as np
import pytest

from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import Floats, Pixels
from paddlepool.tasks.segment.foreground import TILE, foreground_colours
from paddlepool.tasks.segment.stages import _compose


def disc(height: int, width: int, *, ramp: float) -> Floats:
    rows, columns = np.mgrid[:height, :width]
    depth = 0.35 * min(height, width) - np.hypot(rows - height / 2, columns - width / 2)
    return np.clip(depth / ramp, 0, 1).astype(np.float32)


def mixture(share: Floats) -> tuple[Pixels, Pixels, Pixels]:
    """The picture, its foreground with a slow wave of colour, and alpha."""
    wave = 40 * np.sin(np.arange(share.shape[1]) / 25)[None, :, None]
    front = np.clip(np.array([190, 60, 50]) + wave, 0, 255) + np.zeros((*share.shape, 3))
    back = np.array([20, 180, 60])
    picture = front * share[..., None] + back * (1 - share[..., None])
    return (
        np.rint(picture).astype(np.uint8),
        np.rint(front).astype(np.uint8),
        np.rint(share * 255).astype(np.uint8),
    )


def error(colours: Pixels, front: Pixels, alpha: Pixels) -> float:
    band = (alpha > 12) & (alpha < 243)
    return float(np.abs(colours[band].astype(float) - front[band]).mean())


@pytest.mark.parametrize(
    ("height", "width"), [(300, 400), (TILE + 1, 701), (2200, 2100)], ids=["plain", "odd", "large"]
)
def test_most_of_the_background_leaves_the_edges(height: int, width: int) -> None:
    """The colours come to within a third of the distance that the mixture has from them."""
    picture, front, alpha = mixture(disc(height, width, ramp=min(height, width) / 40))
    colours = foreground_colours(picture, alpha)
    assert error(colours, front, alpha) < error(picture, front, alpha) / 3


def test_a_region_that_is_partial_throughout_keeps_its_texture() -> None:
    """Half transparent over a third of the picture is no edge."""
    random = np.random.default_rng(6)
    picture = random.integers(0, 255, (300, 400, 3), dtype=np.uint8)
    alpha = np.zeros((300, 400), np.uint8)
    alpha[50:250, 100:300] = 128
    colours = foreground_colours(picture, alpha)
    middle = (slice(90, 210), slice(140, 260))
    assert np.abs(colours[middle].astype(int) - picture[middle]).max() <= 1


def test_only_beside_transparency_of_its_own_a_picture_keeps_its_colours() -> None:
    """Rounded corners, as screenshots have them, change nothing in the middle."""
    picture, front, alpha = mixture(disc(300, 400, ramp=8))
    own = np.full((300, 400, 1), 255, np.uint8)
    own[:4, :4] = 0
    cornered = np.concatenate((picture, own), axis=2)
    colours = foreground_colours(cornered, alpha)
    assert error(colours, front, alpha) < error(picture, front, alpha) / 3
    own[130:170, 60:110] = 100  # across an edge
    colours = foreground_colours(np.concatenate((picture, own), axis=2), alpha)
    beside = (slice(128, 172), slice(58, 112))
    assert np.array_equal(picture[beside], colours[beside])


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("kind", ["estimated", "original"])
def test_a_whole_cutout_has_the_same_pixels_as_a_cropped_one(kind: str, channels: int) -> None:
    """Only the cropped one is cut from a whole picture of foreground colours."""
    share = disc(300, 401, ramp=12)
    picture, _, alpha = mixture(share)
    own = np.full((300, 401, 1), 255, np.uint8)
    own[:200] = 200
    picture = np.concatenate((picture, own), axis=2)[..., :channels]
    meta = {
        "limits": asdict(PictureLimits()), "output": "cutout", "format": "png", "refine": "none",
        "threshold": None, "crop": False, "crop_margin": ((0, "px"),) * 4, "scale": None,
        "position": None, "bg_blur": None, "colours": kind, "shadow": "none", "foreground": None,
    }  # fmt: skip
    whole, box, ready = _compose(picture, share, meta, None)
    assert list(ready)[-1] == 300
    cropped, _, _ = _compose(picture, share, meta | {"crop": True}, None)
    assert box.width < 401
    np.testing.assert_array_equal(whole[box.slices], cropped)
    assert np.abs(whole[..., :3].astype(int) - picture[..., :3])[alpha > 0].any() == (
        kind == "estimated"
    )

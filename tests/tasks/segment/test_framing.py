"""Canvas, place and what lies behind, to the pixel."""

import numpy as np
import pytest

from paddlepool.tasks.segment import matte
from paddlepool.tasks.segment.matte import Area

SUBJECT = Area(10, 20, 40, 20)  # 20 wide, 40 high, in a picture of 100 x 100
CANVAS = Area(0, 0, 100, 100)


@pytest.mark.parametrize(
    ("scale", "position", "expected"),
    [
        (None, None, Area(10, 20, 40, 20)),
        (None, (0, 0), Area(0, 0, 40, 20)),
        (None, (100, 100), Area(60, 80, 40, 20)),
        (None, (50, 50), Area(30, 40, 40, 20)),
        (None, (25, 100), Area(60, 20, 40, 20)),
        (80, (50, 50), Area(10, 30, 80, 40)),  # the height is what fills 80 %
        (100, (100, 0), Area(0, 50, 100, 50)),
        (10, (50, 50), Area(45, 48, 10, 5)),
        (80, None, Area(0, 10, 80, 40)),  # its middle (30, 30) stays but for the upper rim
        (20, None, Area(20, 25, 20, 10)),
    ],
)
def test_scale_and_position_place_the_subject(
    scale: float | None, position: tuple[float, float] | None, expected: Area
) -> None:
    """Percent of the canvas, and of the room that is free."""
    assert matte.place_of(SUBJECT, CANVAS, scale=scale, position=position) == expected


def test_a_subject_never_vanishes() -> None:
    """A line of one pixel shrunk to a tenth is still a pixel wide."""
    place = matte.place_of(Area(0, 50, 100, 1), CANVAS, scale=10, position=(50, 50))
    assert (place.height, place.width) == (10, 1)


def test_what_is_transparent_colours_nothing() -> None:
    """A red pixel beside a green one of alpha 0, shrunk to one: half covered, and red."""
    pixels = np.array([[[255, 0, 0], [0, 255, 0]]] * 2, np.uint8)
    alpha = np.array([[255, 0]] * 2, np.uint8)
    assert matte.resized_colours(pixels, alpha, 1, 1).tolist() == [[[255, 0, 0]]]
    assert matte.resized_alpha(alpha, 1, 1).tolist() == [[128]]
    assert matte.resized_colours(pixels, alpha * 0, 1, 1).tolist() == [[[0, 0, 0]]]
    grown = matte.resized_colours(pixels, alpha, 4, 4)[matte.resized_alpha(alpha, 4, 4) > 0]
    assert (grown == (255, 0, 0)).all()


def test_a_transparent_background_lies_over_the_colour() -> None:
    """Alpha 0 is the colour, half an alpha is half of it; with a translucent colour alpha stays."""
    picture = np.zeros((2, 2, 4), np.uint8)
    picture[0] = (200, 0, 0, 255)
    picture[1, 1] = (200, 0, 0, 128)
    whole = slice(0, 2)
    result = matte.fitted(picture, height=2, width=2, fit="cover", colour=(0, 0, 100, 255))(whole)
    assert result[0].tolist() == [[200, 0, 0]] * 2
    assert result[1, 0].tolist() == [0, 0, 100]
    assert np.abs(result[1, 1].astype(int) - [100, 0, 50]).max() <= 1
    clear = matte.fitted(picture, height=2, width=2, fit="cover", colour=(0, 0, 0, 0))(whole)
    assert clear[..., 3].tolist() == [[255, 255], [0, 128]]


def test_a_blurred_background_stays_where_it_was() -> None:
    """A canvas cut out of the picture shows the same part of it; beyond the rim it goes on."""
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[:, 100:] = 200
    alpha = np.zeros((100, 200), np.uint8)

    def shown(canvas: Area) -> np.ndarray:
        return matte.blurred(pixels, alpha, percent=1.0, canvas=canvas)(slice(0, canvas.height))

    whole = shown(Area(0, 0, 100, 200))
    assert whole[50, 60].tolist() == [0, 0, 0]
    assert whole[50, 140].tolist() == [200, 200, 200]
    assert abs(int(whole[50, 99, 0]) + int(whole[50, 100, 0]) - 200) <= 2
    assert np.array_equal(whole[20:60, 70:130], shown(Area(20, 70, 40, 60)))
    beyond = shown(Area(-30, 150, 160, 90))
    assert (beyond[:, 50:] == 200).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 2)])
def test_the_smallest_pictures_can_be_blurred(size: tuple[int, int]) -> None:
    """Whether they are all background or all subject, they have the colour they had."""
    pixels = np.full((*size, 3), 90, np.uint8)
    for level in (0, 255):
        alpha = np.full(size, level, np.uint8)
        band = matte.blurred(pixels, alpha, percent=0.5, canvas=Area(0, 0, *size))
        assert np.abs(band(slice(0, size[0])).astype(int) - 90).max() <= 3


def test_a_shadow_falls_right_and_down_and_fades() -> None:
    """Its middle lies 1.5 and 3 percent of the subject's longer side off."""
    alpha = np.zeros((400, 400), np.uint8)
    alpha[100:300, 150:250] = 255
    place = Area(100, 150, 200, 100)
    shade = matte.drop_shadow(alpha, place, opacity=0.5, width=400)
    shadow = np.concatenate([shade(slice(0, 130)), shade(slice(130, 400))]).astype(float)
    rows, columns = np.mgrid[:400, :400]
    assert abs((shadow * rows).sum() / shadow.sum() - (199.5 + 6)) < 0.5
    assert abs((shadow * columns).sum() / shadow.sum() - (199.5 + 3)) < 0.5
    assert abs(shadow.sum() / alpha.sum() - 0.5) < 0.01
    assert shadow.max() == 128
    assert not shadow[:70].any()


def test_over_is_the_painters_rule() -> None:
    """Opaque, half and no front over opaque, half and no back: alpha and colour as they mix."""
    for front in (0, 128, 255):
        for back in (0, 128, 255):
            top = np.full((1, 1, 3), 200, np.uint8)
            under = np.array([[[100, 100, 100, back]]], np.uint8)
            mixed = matte.over(top, np.full((1, 1), front, np.uint8), under)[0, 0]
            a, b = front / 255, back / 255
            total = a + b * (1 - a)
            colour = (200 * a + 100 * b * (1 - a)) / total if total else 0
            assert abs(mixed[3] - 255 * total) <= 0.5
            assert abs(mixed[0] - colour) <= 0.51
    opaque = matte.over(
        np.full((1, 1, 3), 200, np.uint8), np.array([[51]], np.uint8), np.zeros((1, 1, 3), np.uint8)
    )
    assert opaque.tolist() == [[[40, 40, 40]]]


def test_bands_make_no_difference() -> None:
    """A canvas of many bands equals the same put together in one piece."""
    random = np.random.default_rng(5)
    front = random.integers(0, 256, (700, 300, 3), dtype=np.uint8)
    alpha = random.integers(0, 256, (700, 300), dtype=np.uint8)
    shade = random.integers(0, 256, (700, 300), dtype=np.uint8)
    ground = matte.flat((10, 20, 30, 255), 300)
    result = matte.stacked(front, alpha, ground=ground, shade=shade.__getitem__)
    dark = matte.over(np.zeros((700, 300, 3), np.uint8), shade, ground(slice(0, 700)))
    assert np.array_equal(matte.over(front, alpha, dark), result)

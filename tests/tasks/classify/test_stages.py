"""A picture to the input of a classifier."""

from typing import Any

import cv2
import numpy as np
import pytest

from paddlepool.tasks.classify.model import read_classifier
from paddlepool.tasks.classify.stages import drawing, network_input
from tests.tasks.classify.models import model


def tensor_of(picture: Any, *shape: int, **parameters: Any) -> Any:
    classifier = read_classifier(model(*shape, **parameters))
    values = {"operations": classifier.operations, "shape": classifier.shape}
    arrays = network_input(picture, values)
    assert arrays["size"].tolist() == list(picture.shape[:2])
    assert arrays["input"].dtype == np.float32
    return arrays["input"]


def halves() -> Any:
    """Left red, right blue."""
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, :40, 0] = picture[:, 40:, 2] = 255
    return picture


PLAIN: dict[str, Any] = {"mean": 0, "std": 1, "interpolation": "BOX"}


def test_orders_of_axes_and_channels() -> None:
    first = tensor_of(halves(), 3, 4, 4, **PLAIN)
    assert first[0, 0].tolist() == [[1, 1, 0, 0]] * 4
    assert (tensor_of(halves(), 4, 4, 3, **PLAIN).transpose(0, 3, 1, 2) == first).all()
    assert (tensor_of(halves(), 3, 4, 4, channels="BGR", **PLAIN)[:, ::-1] == first).all()
    assert (tensor_of(halves(), 48, size=4, **PLAIN).reshape(first.shape) == first).all()


def test_the_centre_is_cropped() -> None:
    centre = tensor_of(halves(), 3, 4, 4, resize_short=8, **PLAIN)
    assert centre[0, 2].tolist() == [[0, 0, 1, 1]] * 4
    mixed = halves()
    mixed[:, :10] = 255  # outside of the centre
    assert (tensor_of(mixed, 3, 4, 4, resize_short=8, **PLAIN) == centre).all()


def test_grey_levels() -> None:
    grey = tensor_of(halves(), 1, 4, 4, channels="GREY", interpolation="BOX")
    assert grey[0, 0, 0] == pytest.approx([76 / 255, 76 / 255, 29 / 255, 29 / 255], abs=1e-6)


def stroke(*, light: bool, place: int) -> Any:
    """An L on a plain ground."""
    levels = np.full((200, 240), 60, np.uint8)
    levels[place : place + 70, place : place + 8] = 200
    levels[place + 62 : place + 70, place : place + 50] = 200
    levels = 255 - levels if light else levels
    return cv2.cvtColor(levels, cv2.COLOR_GRAY2RGB)


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("place", [5, 90])
def test_strokes_on_any_ground_have_the_place_and_size_of_mnists_digits(
    light: bool, place: int
) -> None:
    result = drawing(stroke(light=light, place=place), height=28, width=28)[..., 0]
    assert (result == drawing(stroke(light=False, place=30), height=28, width=28)[..., 0]).all()
    assert (result.dtype, result.max()) == (np.uint8, 255)
    rows, columns = np.nonzero(result)
    assert rows.max() - rows.min() + 1 == 20
    weights = result[rows, columns]
    assert np.average(rows, weights=weights) == pytest.approx(13.5, abs=0.6)
    assert np.average(columns, weights=weights) == pytest.approx(13.5, abs=0.6)


def test_faint_strokes_are_strokes() -> None:
    """Yellow on white differs by 29 of 255, and noise of 4 beside it is none."""
    clear, yellow = stroke(light=True, place=30), np.full((200, 240, 3), 255, np.uint8)
    yellow[clear[..., 0] < 128] = (255, 255, 0)
    yellow[::9, 5::7] -= 4
    faint = drawing(yellow, height=28, width=28)
    assert (faint.astype(int) - drawing(clear, height=28, width=28)).max() < 60
    assert np.count_nonzero(faint > 128) > 50


@pytest.mark.parametrize("level", [130, 250])
def test_a_plain_picture_has_no_strokes(level: int) -> None:
    picture = np.full((9, 9, 3), level, np.uint8)
    picture[4, 4] -= 15
    assert not drawing(picture, height=28, width=28).any()

"""Boxes around text; test_against_paddlex.py compares them with PaddleX's."""

from typing import Any

import numpy as np
import pytest

from paddlepool.tasks.transforms.boxes import boxes_from_map, reading_order

PARAMETERS: dict[str, Any] = {
    "thresh": 0.3,
    "box_thresh": 0.6,
    "unclip_ratio": 1.5,
    "max_candidates": 1000,
}


def page(*areas: tuple[int, int, int, int], value: float = 0.9) -> np.ndarray[Any, Any]:
    """A map of 100 x 200 with rectangles (top, left, bottom, right)."""
    result = np.zeros((100, 200), np.float32)
    for top, left, bottom, right in areas:
        result[top:bottom, left:right] = value
    return result


def test_a_box_grows_and_is_scaled_to_the_picture() -> None:
    """The corners are pixels 10, 20 and 39, 29: distance 29 * 9 * 1.5 / 76 = 5.15."""
    boxes, scores = boxes_from_map(page((20, 10, 30, 40)), height=200, width=200, **PARAMETERS)
    assert boxes.tolist() == [[[5, 30], [44, 30], [44, 68], [5, 68]]]
    assert scores == [pytest.approx(0.9)]


def test_corners_stay_in_the_picture_inclusive() -> None:
    boxes, _ = boxes_from_map(page((0, 0, 100, 200)), height=50, width=100, **PARAMETERS)
    assert boxes.tolist() == [[[0, 0], [100, 0], [100, 50], [0, 50]]]


@pytest.mark.parametrize(
    ("probabilities", "change"),
    [
        (page(), {}),
        (page((20, 10, 30, 40), value=0.5), {}),
        (page((20, 10, 30, 40), value=0.2), {"box_thresh": 0.1}),
        (page((20, 10, 23, 40)), {}),  # 2 pixels from the first to the last
        (page((20, 10, 24, 14)), {"unclip_ratio": 0.1}),
        (page((20, 10, 30, 40)), {"max_candidates": 0}),
    ],
)
def test_what_is_no_box(probabilities: Any, change: dict[str, Any]) -> None:
    parameters = PARAMETERS | change
    boxes, scores = boxes_from_map(probabilities, height=100, width=200, **parameters)
    assert (boxes.shape, scores) == ((0, 4, 2), [])


def test_a_line_is_read_from_left_to_right() -> None:
    corners = np.array([(50, 9), (10, 15), (30, 0), (5, 40), (90, 41)])
    boxes = np.repeat(corners[:, None], 4, axis=1).astype(np.int32)
    # (10, 15) is on the line of (50, 9) and not on that of (30, 0).
    assert reading_order(boxes) == [2, 1, 0, 3, 4]
    assert reading_order(boxes[:0]) == []

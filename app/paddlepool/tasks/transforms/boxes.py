"""Finds quadrangles around text in a detector's map of probabilities: PaddleX's `DBPostProcess`.

The method is Differentiable Binarization (https://arxiv.org/abs/1911.08947); the roundings are
those of PaddleX 3.7.2 (`paddlex/inference/models/text_detection/processors.py`).
"""

import math
from typing import Any

import cv2
import numpy as np
import pyclipper
from numpy.typing import NDArray

from paddlepool.tasks.codecs.picture import Floats, Pixels

Corners = NDArray[np.int32]
"""Boxes x 4 corners x 2 (x, y) in pixels of the picture: clockwise from the top left."""

LEAST_SIDE = 3
"""A rectangle with a side below this, in pixels of the map, is dropped."""
LEAST_UNCLIPPED_SIDE = 5
"""A rectangle that has been made larger is dropped if a side is below this, in pixels of the map.
"""
FIXED_POINT = 1 << 16
"""OpenCV's unit of a coordinate between pixels."""
LINE_GAP = 10
"""Two boxes lie on one line if the y of their top left corners differs by less than this, in
pixels of the picture."""


def boxes_from_map(
    probabilities: Floats,
    *,
    height: int,
    width: int,
    thresh: float,
    box_thresh: float,
    unclip_ratio: float,
    max_candidates: int,
    **_: Any,
) -> tuple[Corners, list[float]]:
    """Return the boxes of text in a picture of `height` x `width`, and their scores from 0 to 1.

    `probabilities` (h, w) is the detector's output for the picture. Each contour of the pixels
    above `thresh` gives the smallest rectangle around it. Its score is the mean probability inside.
    Then its sides move outwards by area * `unclip_ratio` / perimeter. A rectangle is dropped if its
    score is below `box_thresh`, or if its shorter side is below LEAST_SIDE before the move or below
    LEAST_UNCLIPPED_SIDE after it. Corners are in whole pixels, from 0 to `width` and `height`.

    Only the first `max_candidates` contours are used, in the order in which OpenCV finds them. The
    boxes have this order, too; reading_order() sorts them. Other arguments are ignored.
    """
    tall, wide = probabilities.shape
    binary = (probabilities > thresh).astype(np.uint8)
    contours, _hierarchy = cv2.findContours(binary, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    scale = np.array((width / wide, height / tall))
    boxes: list[NDArray[Any]] = []
    scores: list[float] = []
    for contour in contours[:max_candidates]:
        corners, side = smallest_rectangle(contour)
        if side < LEAST_SIDE:
            continue
        score = _mean_inside(probabilities, corners)
        if score < box_thresh:
            continue
        if (grown := _unclipped(corners, unclip_ratio)) is None:
            continue
        corners, side = smallest_rectangle(grown)
        if side < LEAST_UNCLIPPED_SIDE:
            continue
        boxes.append(np.clip(np.rint(corners * scale), 0, (width, height)))
        scores.append(score)
    return np.array(boxes, np.int32).reshape(-1, 4, 2), scores


def smallest_rectangle(points: NDArray[Any]) -> tuple[Floats, float]:
    """Return the smallest rectangle around the points; it may be rotated.

    Returns its corners (4, 2), clockwise from the top left, and the length of its shorter side.
    """
    rectangle = cv2.minAreaRect(points)
    corners = sorted(cv2.boxPoints(rectangle), key=lambda corner: corner[0])
    (top_left, bottom_left), (top_right, bottom_right) = (
        (a, b) if b[1] > a[1] else (b, a) for a, b in (corners[:2], corners[2:])
    )
    return np.array((top_left, top_right, bottom_right, bottom_left)), min(rectangle[1])


def reading_order(boxes: Corners) -> list[int]:
    """Return the indices of the boxes line by line, from left to right, as PaddleX sorts them.

    The boxes are sorted by the y of the first corner. Then each box moves before the previous one
    for as long as that one lies on the same line and farther right.
    """
    order = sorted(range(len(boxes)), key=lambda i: (boxes[i][0][1], boxes[i][0][0]))
    for end in range(1, len(order)):
        for place in range(end, 0, -1):
            before, box = (boxes[i][0] for i in order[place - 1 : place + 1])
            if abs(box[1] - before[1]) >= LINE_GAP or box[0] >= before[0]:
                break
            order[place - 1 : place + 1] = order[place], order[place - 1]
    return order


def _mean_inside(probabilities: Floats, corners: Floats) -> float:
    height, width = probabilities.shape
    xs, ys = corners[:, 0], corners[:, 1]
    left, right = (_within(value, width) for value in (math.floor(xs.min()), math.ceil(xs.max())))
    top, bottom = (_within(value, height) for value in (math.floor(ys.min()), math.ceil(ys.max())))
    inside = (corners - np.array((left, top), np.float32)).astype(np.int32)
    mask = _filled(inside, bottom - top + 1, right - left + 1)
    return float(cv2.mean(probabilities[top : bottom + 1, left : right + 1], mask)[0])


def _filled(corners: Corners, height: int, width: int) -> Pixels:
    """Return a mask (height, width) that is 1 in and on the edge of the convex polygon, else 0.

    The mask equals that of fillPoly() of OpenCV 4.10, which PaddleX uses. OpenCV 5 rounds the ends
    of a row inwards, which changes scores by up to 0.01.
    """
    mask = np.zeros((height, width), np.uint8)
    cv2.polylines(mask, [corners], isClosed=True, color=1)
    starts, ends = np.full(height, width), np.full(height, -1)
    for a, b in zip(corners.tolist(), np.roll(corners, -1, axis=0).tolist(), strict=True):
        rows = np.arange(max(min(a[1], b[1]), 0), min(max(a[1], b[1]), height))
        if not len(rows):
            continue
        edge, rounding = [a, b], FIXED_POINT // 2
        if not all(0 <= x < width and 0 <= y < height for x, y in edge):
            # An edge that leaves the mask is the line between its clipped ends, without rounding.
            rounding = 0
            _, *clipped = cv2.clipLine((0, 0, width, height), a, b)
            edge = clipped if clipped[0][1] != clipped[1][1] else edge
        top, bottom = edge if a[1] < b[1] else edge[::-1]
        slope = int((bottom[0] - top[0]) * FIXED_POINT / (bottom[1] - top[1]))
        places = (top[0] * FIXED_POINT + rounding + (rows - top[1]) * slope) // FIXED_POINT
        starts[rows] = np.minimum(starts[rows], places)
        ends[rows] = np.maximum(ends[rows], places)
    columns = np.arange(width)
    return mask | ((columns >= starts[:, None]) & (columns <= ends[:, None]))


def _within(value: int, size: int) -> int:
    return max(0, min(value, size - 1))


def _unclipped(corners: Floats, ratio: float) -> NDArray[Any] | None:
    """Return the outline (n, 1, 2) of a rectangle that is made larger, with round corners.

    Its sides move outwards by area * `ratio` / perimeter. Returns None if no outline results.
    """
    distance = cv2.contourArea(corners) * ratio / cv2.arcLength(corners, True)
    offset = pyclipper.PyclipperOffset()
    # Whole numbers, cut off: pyclipper computes with integers.
    path = corners.astype(np.int64).tolist()
    offset.AddPath(path, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    grown = offset.Execute(distance)
    return np.array(grown[0]).reshape(-1, 1, 2) if grown else None

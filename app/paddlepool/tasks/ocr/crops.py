"""Cuts lines of text out of a picture and makes the recogniser's inputs from them.

The roundings are those of PaddleX 3.7.2 (`inference/pipelines/components/common/crop_image_regions`
and `inference/models/text_recognition`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from paddlepool.tasks.codecs.picture import Floats, Pixels
from paddlepool.tasks.transforms.boxes import Corners, smallest_rectangle
from paddlepool.tasks.transforms.preprocess import MOST_LINE_WIDTH
from paddlepool.tasks.transforms.stages import prepare

UPRIGHT = 1.5
"""A crop is turned, as vertical text, if its height is at least its width times this."""


class Crop(NamedTuple):
    """The rectangle around a box: corners (4, 2) clockwise from the top left, size in pixels."""

    corners: Floats
    width: int
    height: int
    is_upright: bool

    def squeezed(self, tall: int, room: int) -> "Crop":
        """Return the crop with fewer pixels, so that it needs at most `room` of the input's width.

        `tall` is the height of the input. Both are in pixels.
        """
        if self.input_width(tall, 0) <= room:
            return self
        if self.is_upright:
            return self._replace(height=self.width * room // tall)
        return self._replace(width=self.height * room // tall)

    def reduced(self, scale: tuple[float, float]) -> "Crop":
        """Return the crop in a picture whose width and height were multiplied by `scale`."""
        wide, tall = scale
        return self._replace(
            corners=self.corners * np.array(scale, np.float32),
            width=max(1, round(self.width * wide)),
            height=max(1, round(self.height * tall)),
        )

    def input_width(self, tall: int, least: int) -> int:
        """Return the width that this line needs in the recogniser's input, up to MOST_LINE_WIDTH.

        `tall` is the height of the input in pixels, `least` its minimum width.
        """
        width, height = (self.height, self.width) if self.is_upright else (self.width, self.height)
        return min(int(tall * max(least / tall, width / height)), MOST_LINE_WIDTH)


def crop_of(box: NDArray[Any]) -> Crop:
    """Return the crop of a box (4, 2); its size is in whole pixels and at least 1 x 1."""
    corners, _ = smallest_rectangle(box)
    top, right, bottom, left = np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1)
    width, height = max(1, int(max(top, bottom))), max(1, int(max(right, left)))
    return Crop(corners, width, height, is_upright=height >= UPRIGHT * width)


def pixels_of(picture: Pixels, crop: Crop) -> Pixels:
    """Return the pixels of a crop (height, width, 3), straightened to a rectangle.

    If it `is_upright`, it is also turned by 90 degrees anticlockwise.
    """
    width, height = crop.width, crop.height
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(crop.corners.astype(np.float32), target)
    line = cv2.warpPerspective(
        picture, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return np.rot90(line) if crop.is_upright else line


def line_tensors(
    picture: Pixels,
    boxes: Corners,
    widths: Sequence[int],
    operations: Sequence[Sequence[Any]],
    *,
    tall: int,
    margin: int = 0,
    scale: tuple[float, float] = (1.0, 1.0),
) -> dict[int, Floats]:
    """Cut lines out of a picture; return the recogniser's inputs by their width.

    `widths` has the width of the input for each box; boxes with equal widths share one tensor
    (lines, 3, tall, width), in the order of the boxes. To the right of a narrower line are zeros. A
    line that would leave less than `margin` pixels there is squeezed. Zeros that an operation
    appends beyond the width are cut off. `operations` are the recogniser's, as
    `InferenceConfig.as_meta()` returns them. `scale` is that of the picture's width and height to
    those of the page, of which the boxes are.
    """
    rows: dict[int, list[Floats]] = {}
    for box, width in zip(boxes, widths, strict=True):
        crop = crop_of(box).squeezed(tall, width - margin).reduced(scale)
        line = prepare(np.ascontiguousarray(pixels_of(picture, crop)), operations)
        rows.setdefault(width, []).append(line[0])
    tensors = {}
    for width, lines in rows.items():
        tensor = tensors[width] = np.zeros((len(lines), *lines[0].shape[:2], width), np.float32)
        for row, line in zip(tensor, lines, strict=True):
            row[..., : line.shape[2]] = line[..., :width]
    return tensors

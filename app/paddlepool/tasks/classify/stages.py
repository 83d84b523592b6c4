"""Makes a classifier's input from a decoded picture, in a codec process."""

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.picture import Pixels
from paddlepool.tasks.transforms import preprocess

INK_SHARE = 20 / 28
"""The longer side of MNIST's digits, as a share of the picture's side."""
CLEAR_INK = 64
"""A pixel belongs to a stroke if its brightness differs from the ground's by this or more, of 255.
If the strongest stroke is faint, half of its difference is enough."""
LEAST_INK = 16
"""A picture whose brightness differs nowhere by this or more has no strokes."""


def network_input(pixels: Pixels, values: Mapping[str, Any]) -> Tensors:
    """Return the model's `input`, a batch of one picture, and the `size` of the picture.

    `pixels` (height, width, 3) is RGB. `values` has the `operations` and the `shape` of a
    Classifier; `input` is float32 and gets this shape, unless it is None. `size` is (height,
    width). Raises ImageUnreadable if the picture is too small for a crop, and ResolutionTooHigh if
    an operation makes it too large.
    """
    array: Any = pixels
    for name, parameters in values["operations"]:
        array = OPERATIONS[name](array, **parameters)
    tensor = np.ascontiguousarray(array, np.float32)[np.newaxis]
    if values["shape"]:
        tensor = tensor.reshape(values["shape"])
    return {"input": tensor, "size": np.array(pixels.shape[:2], np.int32)}


def grey(picture: Pixels) -> Pixels:
    """Return the brightness (height, width, 1) of an RGB picture."""
    levels: Pixels = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)[..., np.newaxis]
    return levels


def drawing(picture: Pixels, *, height: int, width: int) -> Pixels:
    """Return a drawing's strokes in white on black, placed and scaled as MNIST's digits are.

    The result is (height, width, 1), and all 0 if there are no strokes. The ground's brightness is
    the median of the picture's edge. Strokes are darker than a light ground and lighter than a dark
    one, by CLEAR_INK or, if all are faint, by less. They are scaled so that their longer side is
    INK_SHARE of the result's shorter side. Their centre of mass is moved to the centre, or as near
    as they fit.
    """
    levels = grey(picture)[..., 0].astype(np.int16)
    ground = int(np.median(np.concatenate([levels[0], levels[-1], levels[:, 0], levels[:, -1]])))
    ink = (ground - levels if ground >= 128 else levels - ground).clip(0, 255).astype(np.uint8)
    result = np.zeros((height, width, 1), np.uint8)
    strongest = int(ink.max())
    if strongest < LEAST_INK:
        return result
    stroke = ink >= min(CLEAR_INK, strongest / 2)
    rows, columns = np.nonzero(stroke.any(1))[0], np.nonzero(stroke.any(0))[0]
    strokes = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    ratio = min(height, width) * INK_SHARE / max(strokes.shape)
    tall, wide = (max(1, round(side * ratio)) for side in strokes.shape)
    small = cv2.resize(strokes, (wide, tall), interpolation=cv2.INTER_AREA).astype(np.float32)
    small *= 255 / small.max()
    top, left = (
        min(max(0, round((side - 1) / 2 - mean)), side - length)
        for side, length, mean in zip((height, width), (tall, wide), _centre(small), strict=True)
    )
    result[top : top + tall, left : left + wide, 0] = small.round()
    return result


def _centre(ink: Any) -> tuple[float, float]:
    """Return the row and the column of the centre of mass of `ink` (height, width)."""
    total = ink.sum()
    row, column = (
        float((ink.sum(1 - axis) * np.arange(ink.shape[axis])).sum() / total) for axis in (0, 1)
    )
    return row, column


OPERATIONS = preprocess.OPERATIONS | {"Grey": grey, "Drawing": drawing}


def warm_up(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Any:
    """Resize a small picture, so that no request waits for imports or for a first call.

    The arguments are those of every function that codec processes call; none is used.
    """
    del meta, arrays, descriptors
    OPERATIONS["ResizeImage"](
        np.zeros((8, 8, 3), np.uint8),
        resize_short=None,
        size=(4, 4),
        backend="pil",
        interpolation="BILINEAR",
    )
    return {}, {}

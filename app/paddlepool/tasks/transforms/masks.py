"""The label of each pixel, from the output of a semantic segmentation model."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import ModelOutputInvalid
from paddlepool.tasks.transforms.labels import pixel_labels

MOST_CLASSES = 1 << 16


def label_map(output: NDArray[Any], *, height: int, width: int) -> NDArray[Any]:
    """Return the label of each pixel of a picture, (height, width) uint8, or uint16 if needed.

    `output` is the model's output for the picture: labels (1, h, w) or (1, 1, h, w) as whole
    numbers, or a score for each class (1, classes, h, w). Its size may differ from the picture's; a
    pixel gets the nearest label, as in PaddleX. Raises ModelOutputInvalid for another output, and
    for labels below 0 or above 65,535.
    """
    labels = pixel_labels(output[0])
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= MOST_CLASSES:
        raise ModelOutputInvalid(
            f"labels go from {lowest} to {highest}; the limit is 0 to {MOST_CLASSES - 1}"
        )
    small = labels.astype(np.uint8 if highest < 256 else np.uint16)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)

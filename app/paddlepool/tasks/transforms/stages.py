"""Runs all operations before the model on one picture. The server uses it in codec processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlepool.tasks.codecs.picture import Floats, Pixels, opaque
from paddlepool.tasks.transforms.preprocess import OPERATIONS


def prepare(picture: Pixels, operations: Sequence[Sequence[Any]], *, ground: int = 255) -> Floats:
    """Return the model's input (1, 3, height, width) for a decoded picture.

    `operations` are those of `InferenceConfig.as_meta()`. A transparent picture is first placed on
    grey of the level `ground`, from 0 to 255. If no operation sets the order of channels, the model
    gets RGB. Raises ImageUnreadable if the picture is too small for a crop, and ResolutionTooHigh
    if an operation makes it too large.
    """
    values = opaque(picture, ground)
    for name, parameters in operations:
        values = OPERATIONS[name](values, **parameters)
    return np.ascontiguousarray(values, np.float32)[None]

"""The chain of operations on one picture. Runs in a codec process."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlepool.tasks.codecs.picture import Floats, Pixels, opaque
from paddlepool.tasks.transforms.preprocess import OPERATIONS


def prepare(picture: Pixels, operations: Sequence[Sequence[Any]], *, ground: int = 255) -> Floats:
    """Run the operations, as `InferenceConfig.as_meta()` returns them, on a decoded picture.

    Returns the model's input (1, 3, height, width). A transparent picture is placed on grey of the
    level `ground`, because the colours of transparent pixels are arbitrary. Without an operation
    that names the order of channels, the model gets RGB. Raises InputError if the picture is too
    small or becomes too large.
    """
    values = opaque(picture, ground)
    for name, parameters in operations:
        values = OPERATIONS[name](values, **parameters)
    return np.ascontiguousarray(values, np.float32)[None]

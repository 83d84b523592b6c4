"""The chain of operations on one picture. Runs in a codec process.

`open_picture` is a Handler (`paddlepool.engine.process.worker`).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.encode import encode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import Floats, Pixels, opaque
from paddlepool.tasks.transforms.preprocess import OPERATIONS


class Prepared(NamedTuple):
    """The model's input (1, 3, height, width), and height and width of the picture itself."""

    tensor: Floats
    size: tuple[int, int]


def prepare(picture: Pixels, operations: Sequence[Sequence[Any]], *, ground: int = 255) -> Prepared:
    """Run the operations, as `InferenceConfig.as_meta()` returns them, on a decoded picture.

    A transparent picture is placed on grey of the level `ground`, because the colours of
    transparent pixels are arbitrary. Without an operation that names the order of channels, the
    model gets RGB. Raises InputError if the picture is too small or becomes too large.
    """
    values = opaque(picture, ground)
    for name, parameters in operations:
        values = OPERATIONS[name](values, **parameters)
    tensor = np.ascontiguousarray(values, np.float32)[None]
    return Prepared(tensor, (picture.shape[0], picture.shape[1]))


def open_picture(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Any:
    """Decode `body` and make the model's input from it.

    meta: limits (PictureLimits), operations (`InferenceConfig.as_meta()`). The reply has the size
    (height, width) of the upright picture, its pixels, and the seconds of each stage.
    """
    del descriptors
    started = time.perf_counter()
    picture = decode(arrays["body"].tobytes(), PictureLimits(**meta["limits"]))
    decoded = time.perf_counter()
    tensor, size = prepare(picture, meta["operations"])
    done = time.perf_counter()
    return {
        "size": list(size),
        "pixels": size[0] * size[1],
        "seconds": {"decode": decoded - started, "preprocess": done - decoded},
    }, {"input": tensor}


def warm_up(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Any:
    """Decode and resize a small picture, so that no request pays for a first call."""
    del meta, arrays, descriptors
    body = encode(np.zeros((64, 64, 3), np.uint8), format="jpg")
    picture = decode(body.tobytes(), PictureLimits())
    OPERATIONS["RecResizeImg"](picture, image_shape=(3, 48, 320))
    return {}, {}

"""What `test_reading` runs in a codec process."""

from collections.abc import Mapping
from typing import Any

from paddlepool.contracts.errors import TextTooLong
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.picture import Pixels


def mean(pixels: Pixels, values: Mapping[str, Any]) -> Tensors:
    if not values["factor"]:
        raise TextTooLong("its own error")
    return {"mean": pixels.mean(axis=(0, 1))[None] * values["factor"]}

"""The call behind `Codecs.read_picture`: decode a picture and pass it to a task's own function.

Runs only in a codec process.
"""

import pkgutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import opaque


def read_picture(
    meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]
) -> tuple[Mapping[str, Any], Tensors]:
    """Decode the array `body` to RGB over white, and return the arrays of a function.

    `meta` has the fields of PictureLimits as `limits`, and `function` ("module:name") with its
    `values`: it is called as `function(pixels, values)`. The returned mapping has the number of
    `pixels`, and the `seconds` of the stages `decode` and `preprocess`. Raises the errors of
    decode() and of the function.
    """
    del descriptors
    started = time.perf_counter()
    pixels = opaque(decode(arrays["body"].tobytes(), PictureLimits(**meta["limits"])))
    decoded = time.perf_counter()
    made = pkgutil.resolve_name(meta["function"])(pixels, meta["values"])
    seconds = {"decode": decoded - started, "preprocess": time.perf_counter() - decoded}
    return {"pixels": pixels.shape[0] * pixels.shape[1], "seconds": seconds}, made

"""Checks of the answers of codec processes to the calls of `app.tasks.segment.stages`.

The public functions follow `app.engine.process.answers.Check`. They check names, types, shapes and
sizes, because the values become headers, metric labels and charges to a caller's quota. They do not
check the content of a picture: false content makes the answer to one request wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.contracts.tensors import Tensors

FILE_BYTES, FILE_BYTES_A_PIXEL = 1 << 16, 8
"""More than any format takes for pixels that cannot be compressed."""


def check_opened(asked: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    _check_picture(asked, meta, {"decode": float, "preprocess": float})
    side = asked["network"]["size"]
    _check_arrays(arrays, input=("float32", (1, 3, side, side)))


def check_background(asked: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    _check_picture(asked, meta, float)
    _check_arrays(arrays)


def check_rendered(asked: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    expected = {
        "width": int,
        "height": int,
        "box": [int] * 4,
        "confidence": float,
        "seconds": {"postprocess": float, "encode": float},
    }
    _check_types("values", meta, expected)
    pixels = _checked_pixels(asked, meta["width"] * meta["height"])
    length = arrays["image"].size if "image" in arrays else 0
    if not 0 < length <= FILE_BYTES + FILE_BYTES_A_PIXEL * pixels:
        raise ValueError(f"a file of {length} bytes for {pixels} pixels")
    labels = {"labels": ("uint8", (pixels,))} if asked["labels"] else {}
    _check_arrays(arrays, image=("uint8", (length,)), **labels)


def _check_picture(asked: Mapping[str, Any], meta: Mapping[str, Any], seconds: object) -> None:
    _check_types("values", meta, {"shape": [int] * 3, "pixels": int, "seconds": seconds})
    _checked_pixels(asked, meta["pixels"])


def _checked_pixels(asked: Mapping[str, Any], pixels: int) -> int:
    most: int = asked["limits"]["pixels"]
    if not 0 < pixels <= most:
        raise ValueError(f"a picture of {pixels} pixels, limit {most}")
    return pixels


def _check_types(name: str, value: Any, expected: Any) -> None:
    """Check a value against a type, or against a list or dict of types."""
    if not isinstance(expected, list | dict):
        if type(value) is not expected or not 0 <= value < math.inf:
            raise ValueError(f"{name} is no {expected.__name__} from 0")
        return
    keys = expected.keys() if isinstance(expected, dict) else range(len(expected))
    if type(value) is not type(expected) or len(value) != len(keys):
        raise ValueError(f"{name} has other parts than {expected}")
    for key in keys:
        if isinstance(value, dict) and key not in value:
            raise ValueError(f"{name} has no {key}")
        _check_types(str(key), value[key], expected[key])


def _check_arrays(arrays: Tensors, **expected: tuple[str, tuple[int, ...]]) -> None:
    found = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    if found != expected:
        raise ValueError(f"arrays other than {expected}")

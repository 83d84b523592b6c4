"""What a codec process may answer to the calls of `app.pipelines.segment.stages`: the process has
opened a stranger's bytes and may be a stranger's by now.

Each function follows `app.process.answers.Check`. Of the values of an array only those that
become a network's input are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.contracts.tensors import Tensors
from app.pipelines.segment.request import SIZE_PIXELS

CHANNELS = (3, 4)
LONGEST_SECONDS = 3600.0
FILE_BYTES, FILE_BYTES_A_PIXEL = 1 << 16, 8
"""More than any of the formats takes for pixels that cannot be compressed."""


def check_opened(asked: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    _check_names(meta, "shape", "pixels", "seconds")
    held = _check_picture(meta["shape"], meta["pixels"], asked["limits"])
    most = SIZE_PIXELS.get(asked["size"], asked["limits"]["pixels"])
    if held > most or (meta["pixels"] <= most and held != meta["pixels"]):
        raise ValueError(f"a picture of {held} pixels, of {meta['pixels']} and {most} at most")
    _check_stages(meta["seconds"], "decode", "preprocess")
    side = asked["network"]["size"]
    _check_arrays(arrays, input=("float32", (1, 3, side, side)))
    if not np.isfinite(arrays["input"]).all():
        raise ValueError("an input with values that are no finite numbers")


def check_background(asked: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    _check_names(meta, "shape", "pixels", "seconds")
    _check_picture(meta["shape"], meta["pixels"], asked["limits"])
    _check_number("seconds", meta["seconds"], LONGEST_SECONDS)
    _check_arrays(arrays)


def check_rendered(asked: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    _check_names(meta, "width", "height", "box", "confidence", "seconds")
    height, width, _ = asked["shape"]
    _check_box(meta["box"], height=height, width=width)
    _check_number("confidence", meta["confidence"], 1.0)
    _check_stages(meta["seconds"], "postprocess", "encode")
    size = (meta["width"], meta["height"])
    if asked["crop"]:
        side, most = asked["limits"]["side"], asked["limits"]["pixels"]
    else:
        side, most = max(width, height), width * height
    pixels = _count("width", size[0], 1, side) * _count("height", size[1], 1, side)
    if pixels > most:
        raise ValueError(f"a result of {pixels} pixels, of {most} at most")
    if not asked["crop"] and size != (width, height):
        raise ValueError("a result of another size than the picture's")
    image = arrays.get("image")
    length = image.size if image is not None else 0
    _count("image", length, 1, FILE_BYTES + FILE_BYTES_A_PIXEL * pixels)
    labels = {"labels": ("uint8", (pixels,))} if asked["labels"] else {}
    _check_arrays(arrays, image=("uint8", (length,)), **labels)


def _check_names(meta: Mapping[str, Any], *names: str) -> None:
    if meta.keys() != set(names):
        raise ValueError(f"values other than {', '.join(names)}")


def _check_arrays(arrays: Tensors, **expected: tuple[str, tuple[int, ...]]) -> None:
    found = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    if found != expected:
        raise ValueError(f"arrays other than {expected}")


def _check_picture(shape: Any, pixels: Any, limits: Mapping[str, int]) -> int:
    """Its pixels; `pixels` are those of the upload, of which it may be a smaller copy."""
    height, width, channels = _list("shape", shape, 3)
    side = limits["side"]
    held = _count("shape", height, 1, side) * _count("shape", width, 1, side)
    _count("shape", channels, min(CHANNELS), max(CHANNELS))
    _count("pixels", pixels, held, limits["pixels"])
    return held


def _check_box(box: Any, *, height: int, width: int) -> None:
    top, left, wide, tall = _list("box", box, 4)
    _count("box", wide, 0, width - _count("box", left, 0, width))
    _count("box", tall, 0, height - _count("box", top, 0, height))


def _check_stages(seconds: Any, *stages: str) -> None:
    if not isinstance(seconds, dict):
        raise ValueError("seconds are given by stage")
    _check_names(seconds, *stages)
    for stage in stages:
        _check_number(stage, seconds[stage], LONGEST_SECONDS)


def _list(name: str, value: Any, length: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise ValueError(f"{name} are {length} numbers")
    return value


def _count(name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}")
    return value


def _check_number(name: str, value: Any, most: float) -> None:
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise ValueError(f"{name} is a number from 0 to {most:g}")

"""Stands for `app.pipelines.segment.stages` in a codec process that is not ours any more: whoever
sends a picture of one of these widths is answered wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.contracts.tensors import Tensors
from app.pipelines.segment import stages
from app.pipelines.segment.stages import Result
from app.pipelines.segment.stages import warm_up as warm_up

HEADER = "1\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n"
Wrong = Callable[[dict[str, Any], dict[str, Any]], object]


def told(name: str, value: object) -> Wrong:
    return lambda meta, arrays: meta.update({name: value})


def given(name: str, change: Callable[[Any], Any]) -> Wrong:
    return lambda meta, arrays: arrays.update({name: change(arrays[name])})


OPENED: dict[str, Wrong] = {
    "fewer pixels than none": told("pixels", -(10**9)),
    "more pixels than allowed": told("pixels", 10**9),
    "a shape in words": told("shape", "abc"),
    "a part of a pixel": told("shape", [60.5, 60, 3]),
    "a header for a stage": told("seconds", {HEADER: 0.5, "preprocess": 0.1}),
    "endless seconds": told("seconds", {"decode": 1e999, "preprocess": 0.1}),
    "one thing more": told("more", 1),
    "wider numbers": given("input", lambda x: x.astype(np.float64)),
    "seven rows": given("input", lambda x: x.repeat(7, axis=0)),
}
RENDERED: dict[str, Wrong] = {
    "a header for a width": told("width", HEADER),
    "no number for a width": told("width", True),
    "another width": told("width", 10**6),
    "no box": lambda meta, arrays: meta.pop("box"),
    "a box of headers": told("box", [HEADER] * 4),
    "certain in words": told("confidence", "x"),
    "a label of its own": told("seconds", {"zzlabel": 1.0, "encode": 1.0}),
    "nothing rendered": lambda meta, arrays: arrays.clear(),
    "a picture of floats": given("image", lambda x: x.astype(np.float32)),
    "a huge picture": given("image", lambda x: np.zeros(1 << 24, np.uint8)),
    "labels unasked": lambda meta, arrays: arrays.update(labels=arrays["image"]),
}
BACKGROUND: dict[str, Wrong] = {
    "pixels given back": told("pixels", -5),
    "seconds by stage": told("seconds", {"decode": 1.0}),
    "an array": lambda meta, arrays: arrays.update(x=np.zeros(1)),
}
FIRST_WIDTH = 200
WIDTHS = {name: FIRST_WIDTH + n for n, name in enumerate((*OPENED, *RENDERED, *BACKGROUND))}


def _turned(result: Result, wrong: Mapping[str, Wrong], width: int) -> Result:
    meta, arrays = dict(result[0]), dict(result[1])
    for name, change in wrong.items():
        if WIDTHS[name] == width:
            change(meta, arrays)
    return meta, arrays


def open_picture(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    result = stages.open_picture(meta, arrays, descriptors)
    return _turned(result, OPENED, result[0]["shape"][1])


def open_background(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    result = stages.open_background(meta, arrays, descriptors)
    return _turned(result, BACKGROUND, meta["shape"][1])


def render(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    return _turned(stages.render(meta, arrays, descriptors), RENDERED, meta["shape"][1])

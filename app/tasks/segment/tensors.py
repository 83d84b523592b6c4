"""The task as a tensor model: a picture's file in, the encoded result and its measures out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.contracts.errors import FileMissing, InvalidParameter
from app.contracts.task_tensors import STRINGS, TaskTensors, strings_of
from app.contracts.tensors import Tensors, TensorSpec
from app.settings.server import Settings
from app.tasks.segment.options import OPTIONS
from app.tasks.segment.request import SegmentRequest, SegmentResult, SegmentSettings, read_options

INPUTS = (TensorSpec("image", STRINGS, (1,)), TensorSpec("bg_image", STRINGS, (1,)))
OUTPUTS = (
    TensorSpec("image", STRINGS, (1,)),
    TensorSpec("size", "int32", (2,)),
    TensorSpec("foreground_box", "int32", (4,)),
    TensorSpec("confidence", "float32", (1,)),
)
MAX_CHARACTERS = 1_024
"""Most characters of a parameter; the same number as for a form."""


def tensors(settings: Settings) -> TaskTensors:
    return TaskTensors(
        inputs=INPUTS,
        outputs=OUTPUTS,
        parameters=(*OPTIONS, "model"),
        read=_read,
        write=_write,
        max_bytes=settings.of(SegmentSettings).segment_max_bytes,
        optional=frozenset({"bg_image"}),
        opaque=frozenset({"image"}),
    )


def _read(inputs: Tensors, parameters: Mapping[str, Any]) -> SegmentRequest:
    files: dict[str, bytes] = {name: array.item(0) for name, array in inputs.items()}
    for name, file in files.items():
        if not file:
            raise FileMissing(f"{name}: the picture has 0 bytes", received=0)
    options = {name: _text(name, parameters[name]) for name in OPTIONS if name in parameters}
    return read_options(files["image"], options, background=files.get("bg_image"))


def _text(name: str, value: str | int | float | bool) -> str:
    """The parameter as text, as a query has it."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > MAX_CHARACTERS:
        raise InvalidParameter(
            f"{name} has {len(text)} characters, the limit is {MAX_CHARACTERS}",
            limit=MAX_CHARACTERS,
            received=len(text),
        )
    return text


def _write(result: SegmentResult, parameters: Mapping[str, Any]) -> Tensors:
    del parameters
    box = result.box
    return {
        "image": strings_of([result.image], (1,)),
        "size": np.array([result.width, result.height], np.int32),
        "foreground_box": np.array([box.top, box.left, box.width, box.height], np.int32),
        "confidence": np.array([result.confidence], np.float32),
    }

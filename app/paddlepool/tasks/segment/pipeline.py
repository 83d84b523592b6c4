"""Pipeline of one segmentation model: open the picture, run the model, render the result.

The first and the last step run in codec processes. This module loads no picture library.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.errors import ConfigError, ImageUnreadable, InputError, InvalidParameter
from paddlepool.contracts.ports import Agreement, RequestContext, ServedModelInfo, Slices
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.process.replies import Reply
from paddlepool.models.repository.config import parse_parameters
from paddlepool.tasks.codecs.pool import Codecs, check_pixels, check_types
from paddlepool.tasks.segment.masks import foreground_of, normalise
from paddlepool.tasks.segment.request import (
    SIZE_PIXELS,
    ForegroundBox,
    SegmentRequest,
    SegmentResult,
)
from paddlepool.tasks.segment.semantic import label_agreement, read_semantic
from paddlepool.tasks.transforms.labels import pixel_labels

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Parameters(BaseModel):
    """`[parameters]` of a matting model, whose input is a square.

    `size` is the square's side in pixels; `mean` and `std` have a number for each channel.
    `output` names the output that is the mask; the default is the first output. The other defaults
    are U2-Net's (https://github.com/xuebinqin/U-2-Net/blob/master/data_loader.py).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(default=320, ge=16, le=4096)
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    output: str = Field(default="", min_length=1)


def read_parameters(info: ServedModelInfo) -> Parameters:
    """Read `[parameters]` of a matting model. A missing `output` is set to the first output's name.

    Raises ConfigError if they are wrong, or if the model's inputs and outputs do not fit the task.
    """
    parameters = parse_parameters(info, Parameters)
    size = parameters.size
    fits = [
        spec.dtype == "float32" and spec.admits_shape((*spec.shape[:1], 3, size, size))
        for spec in info.inputs
    ]
    if fits != [True]:
        raise ConfigError(
            f"{info.name} takes {', '.join(f'{s.name} {s.dtype}{s.shape}' for s in info.inputs)}; "
            f"the segment task feeds one float32 tensor (pictures, 3, {size}, {size})"
        )
    name = parameters.output or info.outputs[0].name
    mask = next((spec for spec in info.outputs if spec.name == name), None)
    if mask is None:
        raise ConfigError(
            f"{info.name}: parameters.output is {name!r}, the model returns "
            f"{', '.join(spec.name for spec in info.outputs)}"
        )
    if len(mask.shape) != 4 or mask.shape[1] not in (-1, 1):
        raise ConfigError(
            f"{info.name} returns {mask.name} {mask.dtype}{mask.shape} as its mask; the segment "
            "task expects (pictures, 1, height, width)"
        )
    return parameters.model_copy(update={"output": name})


def mask_agreement(info: ServedModelInfo) -> Agreement:
    """Return a function that compares two outputs by the IoU of their masks, 1 if both are empty.

    A mask is normalised, and its values from 0.5 on count. The outputs of a semantic segmentation
    model are compared by label_agreement(). Raises ConfigError as read_parameters() and
    read_semantic() do.
    """
    if semantic := read_semantic(info):
        return label_agreement(semantic)
    output = read_parameters(info).output

    def agreement(outputs: Tensors, expected: Tensors) -> float:
        mask, reference = (
            normalise(np.asarray(tensors[output], np.float32)) >= 0.5
            for tensors in (outputs, expected)
        )
        union = int((mask | reference).sum())
        return float((mask & reference).sum() / union) if union else 1.0

    return agreement


MASK_SIZES = {0.0: "empty", 0.05: "up to 5 %", 0.25: "up to 25 %", 0.5: "up to 50 %"}
"""Kinds of masks, each by the largest share of the picture that such a mask covers."""


def mask_slices(info: ServedModelInfo) -> Slices:
    """Return a function that returns the kind of each mask in a model's outputs, as in MASK_SIZES.

    Masks above the last share in it are named `above 50 %`. Raises ConfigError as read_parameters()
    and read_semantic() do.
    """
    semantic = read_semantic(info)
    output = read_parameters(info).output if semantic is None else semantic.output

    def size(mask: NDArray[Any]) -> str:
        if semantic is not None:
            labels = pixel_labels(mask)
            area = foreground_of(labels, classes=semantic.classes, invert=semantic.invert)
        else:
            area = normalise(np.asarray(mask, np.float32))
        share = float((area >= 0.5).mean())
        return next((name for most, name in MASK_SIZES.items() if share <= most), "above 50 %")

    return lambda outputs: [size(mask) for mask in outputs[output]]


RGBA = 4
"""Maximum bytes of a pixel."""
STAGES = "paddlepool.tasks.segment.stages"
FILE_BYTES, FILE_BYTES_A_PIXEL = 1 << 16, 8
"""An encoded file has at most FILE_BYTES plus FILE_BYTES_A_PIXEL for each pixel. No format takes
more, even for pixels that cannot be compressed."""

# Checks of the answers of codec processes (paddlepool.engine.process.replies.Check): names, types,
# shapes and sizes, because the values become headers, metric labels and charges to a quota.

DECODED: dict[str, Any] = {"shape": [int] * 3, "pixels": int}
RENDERED: dict[str, Any] = {
    "width": int,
    "height": int,
    "confidence": float,
    "box": dict.fromkeys(("top", "left", "height", "width"), int),
    "seconds": {"postprocess": float, "encode": float},
}


def check_opened(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    check_types(meta, DECODED | {"seconds": {"decode": float, "preprocess": float}})
    check_pixels(call, meta["pixels"])
    if "operations" in call["network"]:
        return  # RequestContext.infer() checks the shape, which depends on the picture
    side = call["network"]["size"]
    _check_arrays(arrays, input=("float32", (1, 3, side, side)))


def check_background(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    check_types(meta, DECODED | {"seconds": {"decode": float}})
    check_pixels(call, meta["pixels"])
    _check_arrays(arrays)


def check_rendered(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    check_types(meta, RENDERED)
    pixels = meta["width"] * meta["height"]
    check_pixels(call, pixels)
    length = arrays["image"].size if "image" in arrays else 0
    if not 0 < length <= FILE_BYTES + FILE_BYTES_A_PIXEL * pixels:
        raise ValueError(f"a file of {length} bytes for {pixels} pixels")
    labels = {"labels": ("uint8", (pixels,))} if call["labels"] else {}
    _check_arrays(arrays, image=("uint8", (length,)), **labels)


def _check_arrays(arrays: Tensors, **expected: tuple[str, tuple[int, ...]]) -> None:
    if {name: (array.dtype.name, array.shape) for name, array in arrays.items()} != expected:
        raise ValueError(f"arrays other than {expected}")


CHECKS = {
    "open_picture": check_opened,
    "open_background": check_background,
    "render": check_rendered,
}
"""Checks of the replies of codec processes, by the name of the function in STAGES."""


class SegmentPipeline:
    """Implements the Pipeline port; a payload is a SegmentRequest, a value a SegmentResult."""

    def __init__(self, info: ServedModelInfo, *, codecs: Codecs) -> None:
        """Read the parameters. Raises ConfigError if they or the tensors do not fit the task."""
        self._name = info.name
        semantic = read_semantic(info)
        if semantic is None:
            parameters = read_parameters(info)
            self._network: dict[str, Any] = parameters.model_dump(exclude={"output"})
            self._foreground: dict[str, Any] | None = None
            self._output_name = parameters.output
        else:
            self._network = {"operations": semantic.operations}
            self._foreground = {"classes": semantic.classes, "invert": semantic.invert}
            self._output_name = semantic.output
        codecs.pool.checks |= {f"{STAGES}:{stage}": check for stage, check in CHECKS.items()}
        self._codecs = codecs
        self._limits = asdict(codecs.limits)
        self._input_name = info.inputs[0].name

    async def run(self, payload: SegmentRequest, context: RequestContext) -> SegmentResult:
        """Decode the picture, run the network and render the result.

        Raises InputError for a bad picture, an option that the model does not support or a result
        that is too large. Also raises Overloaded, QuotaExceeded, OSError, and the errors of
        CodecPool.submit() and RequestContext.infer().
        """
        output = payload.output
        if self._foreground is not None and payload.labels:
            output = "labels"
        elif self._foreground is None and output == "labels":
            raise InvalidParameter(
                f"output=labels needs a semantic segmentation model; {self._name} returns a mask "
                "of the foreground, without classes",
                parameter="output",
                limit="cutout, mask, composite",
            )
        descriptors: list[int] = []

        async def decode(stage: str, meta: Mapping[str, Any], body: bytes, about: str) -> Reply:
            """Decode `body` into a new picture, and subtract its pixels from the caller's quota.

            An InputError names the field `about`, if any.
            """
            size = RGBA * self._codecs.limits.pixels
            picture = held.enter_context(self._codecs.pictures.open(size))
            descriptors.append(picture.descriptor)
            try:
                reply = await self._codecs.pool.submit(
                    f"{STAGES}:{stage}",
                    meta,
                    {"body": np.frombuffer(body, np.uint8)},
                    descriptors=(picture.descriptor,),
                    deadline=context.deadline,
                    crash_error=ImageUnreadable,
                )
                picture.charge()
                CALLER.get().spend("pixels", reply.meta["pixels"])
            except InputError as error:
                raise error.about(about) if about else error from None
            context.add_seconds(reply.meta["seconds"])
            return reply

        second = payload.background
        meta = payload.model_dump(exclude={"body", "background"}) | {
            "limits": self._limits,
            "background": None,
            "output": output,
            "foreground": self._foreground,
        }
        more = {"network": self._network, "most_pixels": SIZE_PIXELS.get(payload.size)}
        with ExitStack() as held:
            about = "" if second is None else "file"
            opened = await decode("open_picture", meta | more, payload.body, about)
            meta["shape"] = opened.meta["shape"]
            if second is not None:
                background = await decode("open_background", meta, second, "bg_image")
                meta["background"] = background.meta["shape"]
            [outputs] = await context.infer([{self._input_name: opened.arrays["input"]}])
            reply = await self._codecs.pool.submit(
                f"{STAGES}:render",
                meta,
                {"mask": outputs[self._output_name]},
                descriptors=descriptors,
                deadline=context.deadline,
                urgent=True,
            )
        rendered = reply.meta
        context.add_seconds(rendered["seconds"])
        return SegmentResult(
            image=reply.arrays["image"].tobytes(),
            format=payload.format,
            output=output,
            width=rendered["width"],
            height=rendered["height"],
            box=ForegroundBox(**rendered["box"]),
            confidence=rendered["confidence"],
            labels=reply.arrays["labels"].tobytes() if payload.labels else None,
        )

    def close(self) -> None:
        """Do nothing: the codecs are shared and belong to `paddlepool.main`."""

"""Pipeline of one matting model: open the picture, run one engine job, render the result.

The first and the last step run in codec processes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from app.contracts.caller import CALLER
from app.contracts.errors import ImageUnreadable, InputError
from app.contracts.ports import Finished, Prepared, ServedModelInfo
from app.contracts.tensors import Tensors
from app.engine.process.answers import Reply
from app.tasks.codecs.picture import Picture
from app.tasks.codecs.pool import Codecs
from app.tasks.segment.parameters import mask_output, read_parameters
from app.tasks.segment.request import ForegroundBox, SegmentRequest, SegmentResult

RGBA = 4
"""Maximum bytes of a pixel."""
STAGES = "app.tasks.segment.stages"


FILE_BYTES, FILE_BYTES_A_PIXEL = 1 << 16, 8
"""An encoded file has at most FILE_BYTES, and FILE_BYTES_A_PIXEL for each pixel: no format takes
more, even for pixels that cannot be compressed."""


# Checks of the answers of codec processes (app.engine.process.answers.Check): names, types, shapes
# and sizes, because the values become headers, metric labels and charges to a quota.


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


CHECKS = {
    "open_picture": check_opened,
    "open_background": check_background,
    "render": check_rendered,
}
"""Checks of the answers, by stage."""


class SegmentPipeline:
    """Implements the Pipeline port; a payload is a SegmentRequest, a value a SegmentResult."""

    def __init__(self, info: ServedModelInfo, *, codecs: Codecs) -> None:
        """Raises ConfigError if the tensors or parameters do not fit the task."""
        parameters = read_parameters(info)
        for stage, check in CHECKS.items():
            codecs.pool.expect(f"{STAGES}:{stage}", check)
        self._network = parameters.model_dump()
        self._codecs = codecs
        self._limits = asdict(codecs.limits)
        self._input_name = info.inputs[0].name
        self._output_name = mask_output(info, parameters).name

    async def prepare(self, payload: SegmentRequest, *, deadline: float) -> Prepared:
        """Decode the pictures and make the network's input.

        Raises Overloaded, DeadlineExceeded, and InputError if a picture is at fault.
        """
        limits, options = self._limits, asdict(payload)
        del options["body"], options["background"]
        with ExitStack() as held:
            picture = self._opened(held)
            first = "file" if payload.background is not None else ""
            meta = options | {"limits": limits, "network": self._network}
            with _about(first):
                reply = await self._decode("open_picture", meta, payload.body, picture, deadline)
            stages = dict(reply.meta["seconds"])
            meta = {"limits": limits, "shape": reply.meta["shape"]}
            render = options | meta | {"background": None}
            pictures = [picture]
            if payload.background is not None:
                background = self._opened(held)
                with _about("bg_image"):
                    second = await self._decode(
                        "open_background", meta, payload.background, background, deadline
                    )
                stages["decode"] += second.meta["seconds"]
                render["background"] = second.meta["shape"]
                pictures.append(background)
            release = held.pop_all().close
        return Prepared(
            jobs=({self._input_name: reply.arrays["input"]},),
            state=(payload, render, pictures),
            stages=stages,
            release=release,
        )

    def _opened(self, held: ExitStack) -> Picture:
        picture = self._codecs.pictures.open(RGBA * self._codecs.limits.pixels)
        held.callback(picture.release)
        return picture

    async def _decode(
        self, stage: str, meta: Mapping[str, Any], body: bytes, picture: Picture, deadline: float
    ) -> Reply:
        reply = await self._codecs.pool.submit(
            f"{STAGES}:{stage}",
            meta,
            {"body": np.frombuffer(body, np.uint8)},
            descriptors=(picture.descriptor,),
            deadline=deadline,
            blame=ImageUnreadable,
        )
        picture.charge()
        CALLER.get().spend("pixels", reply.meta["pixels"])
        return reply

    async def finish(
        self, prepared: Prepared, outputs: Sequence[Tensors], *, deadline: float
    ) -> Finished:
        """A SegmentResult. Raises DeadlineExceeded, OutputTooLarge and WorkerCrashed."""
        request, meta, pictures = prepared.state
        reply = await self._codecs.pool.submit(
            f"{STAGES}:render",
            meta,
            {"mask": outputs[0][self._output_name]},
            descriptors=[each.descriptor for each in pictures],
            deadline=deadline,
            urgent=True,
        )
        found = reply.meta
        top, left, width, height = found["box"]
        result = SegmentResult(
            image=reply.arrays["image"].tobytes(),
            format=request.format,
            output=request.output,
            width=found["width"],
            height=found["height"],
            box=ForegroundBox(top=top, left=left, width=width, height=height),
            confidence=found["confidence"],
            labels=reply.arrays["labels"].tobytes() if request.labels else None,
        )
        return Finished(value=result, stages=found["seconds"])

    def close(self) -> None:
        """Do nothing: the codecs are shared and belong to `app.main`."""


@contextmanager
def _about(part: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        if part:
            raise error.about(part) from None
        raise

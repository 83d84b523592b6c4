"""Pipeline of one matting model: open the picture, run one engine job, render the result.

The first and the last step run in codec processes. This module awaits their calls and owns the
picture's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from app.contracts.caller import CALLER
from app.contracts.errors import ImageUnreadable, InputError
from app.contracts.ports import Finished, Prepared, ServedModelInfo
from app.contracts.tensors import Tensors
from app.tasks.codecs.call import Reply
from app.tasks.codecs.picture import Picture
from app.tasks.codecs.pool import Codecs
from app.tasks.segment.answers import check_background, check_opened, check_rendered
from app.tasks.segment.parameters import Parameters, mask_output, read_parameters
from app.tasks.segment.request import Box, SegmentRequest, SegmentResult

RGBA = 4
"""Most bytes of a pixel."""
STAGES = "app.tasks.segment.stages"
CHECKS = {
    "open_picture": check_opened,
    "open_background": check_background,
    "render": check_rendered,
}


def open_pipeline(info: ServedModelInfo, *, codecs: Codecs) -> SegmentPipeline:
    """Open the pipeline. Raises ConfigError if the tensors or parameters do not fit the task."""
    parameters = read_parameters(info)
    for stage, check in CHECKS.items():
        codecs.pool.expect(f"{STAGES}:{stage}", check)
    return SegmentPipeline(
        parameters,
        codecs=codecs,
        input_name=info.inputs[0].name,
        output_name=mask_output(info, parameters).name,
    )


class SegmentPipeline:
    """Implements the Pipeline port; a payload is a SegmentRequest, a value a SegmentResult."""

    def __init__(
        self, parameters: Parameters, *, codecs: Codecs, input_name: str, output_name: str
    ) -> None:
        self._network = parameters.model_dump()
        self._codecs = codecs
        self._input_name = input_name
        self._output_name = output_name

    async def prepare(self, payload: SegmentRequest, *, deadline: float) -> Prepared:
        """Decode the pictures and make the network's input.

        Raises Overloaded, DeadlineExceeded, and InputError if a picture is at fault.
        """
        meta = {
            "limits": asdict(self._codecs.limits),
            "network": self._network,
            "size": payload.size,
            "output": payload.output,
            "refine": payload.refine,
            "format": payload.format,
            "labels": payload.labels,
        }
        with ExitStack() as held:
            picture = self._opened(held)
            first = "file" if payload.background is not None else ""
            with _about(first):
                reply = await self._decode("open_picture", meta, payload.body, picture, deadline)
            stages = dict(reply.meta["seconds"])
            shape = reply.meta["shape"]
            opened = _Opened(payload, picture, shape)
            if payload.background is not None:
                background = self._opened(held)
                meta = {"limits": meta["limits"], "shape": shape}
                with _about("bg_image"):
                    second = await self._decode(
                        "open_background", meta, payload.background, background, deadline
                    )
                stages["decode"] += second.meta["seconds"]
                opened = _Opened(payload, picture, shape, background, second.meta["shape"])
            release = held.pop_all().close
        return Prepared(
            jobs=({self._input_name: reply.arrays["input"]},),
            state=opened,
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
        """Decode one picture's file into its memory, and charge the memory."""
        reply = await self._codecs.call(
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
        opened: _Opened = prepared.state
        request = opened.request
        pictures = (opened.picture, opened.background)
        meta = {
            "limits": asdict(self._codecs.limits),
            "shape": opened.shape,
            "background": opened.background_shape,
            "scene": asdict(request.scene),
            "output": request.output,
            "format": request.format,
            "bg_color": request.bg_color,
            "crop": request.crop,
            "refine": request.refine,
            "threshold": request.threshold,
            "colours": request.colours,
            "labels": request.labels,
        }
        reply = await self._codecs.call(
            f"{STAGES}:render",
            meta,
            {"mask": outputs[0][self._output_name]},
            descriptors=[each.descriptor for each in pictures if each is not None],
            deadline=deadline,
            urgent=True,
        )
        return Finished(value=_result(request, reply), stages=reply.meta["seconds"])

    def close(self) -> None:
        """Do nothing: the codecs are shared and belong to `app.main`."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A request and its decoded pictures; the second, the background, may be absent."""

    request: SegmentRequest
    picture: Picture
    shape: list[int]
    background: Picture | None = None
    background_shape: list[int] | None = None


@contextmanager
def _about(part: str) -> Iterator[None]:
    """Name the picture in an InputError of the block if the request has two."""
    try:
        yield
    except InputError as error:
        if part:
            raise error.about(part) from None
        raise


def _result(request: SegmentRequest, reply: Reply) -> SegmentResult:
    meta: Mapping[str, Any] = reply.meta
    top, left, width, height = meta["box"]
    return SegmentResult(
        image=reply.arrays["image"].tobytes(),
        format=request.format,
        output=request.output,
        width=meta["width"],
        height=meta["height"],
        box=Box(top=top, left=left, width=width, height=height),
        confidence=meta["confidence"],
        labels=reply.arrays["labels"].tobytes() if request.labels else None,
    )

"""One matting model's pipeline: the picture opened, one engine job, the result rendered.

Both ends run in codec processes; here their calls are awaited and the picture's memory is owned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from app.codecs.call import Reply
from app.codecs.picture import Picture
from app.codecs.service import Codecs
from app.contracts.errors import ImageUnreadable
from app.contracts.ports import Finished, Prepared, ServedModelInfo
from app.contracts.tensors import Tensors
from app.pipelines.segment.parameters import Parameters, read_parameters
from app.pipelines.segment.request import Box, SegmentRequest, SegmentResult

STAGES = "app.pipelines.segment.stages"


def open_pipeline(info: ServedModelInfo, *, codecs: Codecs) -> SegmentPipeline:
    """Raises ConfigError when the model's tensors or parameters do not fit the task."""
    parameters = read_parameters(info)
    codecs.pool.warm_up(f"{STAGES}:warm_up")
    return SegmentPipeline(
        parameters, codecs=codecs, input_name=info.inputs[0].name, output_name=info.outputs[0].name
    )


class SegmentPipeline:
    """Pipeline port; its payload is a SegmentRequest, its value a SegmentResult."""

    def __init__(
        self, parameters: Parameters, *, codecs: Codecs, input_name: str, output_name: str
    ) -> None:
        self._network = parameters.model_dump()
        self._codecs = codecs
        self._input_name = input_name
        self._output_name = output_name

    async def prepare(self, payload: SegmentRequest, *, deadline: float) -> Prepared:
        """Raises Overloaded, DeadlineExceeded, and InputError where the picture is at fault."""
        meta = {
            "limits": asdict(self._codecs.limits),
            "network": self._network,
            "size": payload.size,
            "output": payload.output,
            "refine": payload.refine,
            "format": payload.format,
        }
        picture = self._codecs.pictures.open()
        try:
            reply = await self._codecs.call(
                f"{STAGES}:open_picture",
                meta,
                {"body": np.frombuffer(payload.body, np.uint8)},
                descriptors=(picture.descriptor,),
                deadline=deadline,
                blame=ImageUnreadable,
            )
            picture.charge()
        except BaseException:
            picture.release()
            raise
        return Prepared(
            jobs=({self._input_name: reply.arrays["input"]},),
            state=(payload, picture, reply.meta["shape"]),
            stages=reply.meta["seconds"],
            release=picture.release,
        )

    async def finish(
        self, prepared: Prepared, outputs: Sequence[Tensors], *, deadline: float
    ) -> Finished:
        """A SegmentResult. Raises DeadlineExceeded, OutputTooLarge and WorkerCrashed."""
        request, picture, shape = _state_of(prepared)
        meta = {
            "shape": shape,
            "output": request.output,
            "format": request.format,
            "bg_color": request.bg_color,
            "crop": request.crop,
            "refine": request.refine,
            "threshold": request.threshold,
        }
        reply = await self._codecs.call(
            f"{STAGES}:render",
            meta,
            {"mask": outputs[0][self._output_name]},
            descriptors=(picture.descriptor,),
            deadline=deadline,
            urgent=True,
        )
        return Finished(value=_result(request, reply), stages=reply.meta["seconds"])

    def close(self) -> None:
        """Nothing to close: the codecs are shared and belong to `app.main`."""


def _state_of(prepared: Prepared) -> tuple[SegmentRequest, Picture, list[int]]:
    request, picture, shape = prepared.state
    return request, picture, shape


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
    )

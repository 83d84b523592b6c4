"""One matting model's pipeline: the picture opened, one engine job, the result rendered.

Both ends run in codec processes; here only futures are joined and the picture's memory is owned.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

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

T = TypeVar("T")


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

    def prepare(self, payload: SegmentRequest, *, deadline: float) -> Future[Prepared]:
        """Raises Overloaded; the future raises what decoding says of the picture (InputError)."""
        picture = self._codecs.pictures.open()
        meta = {
            "limits": asdict(self._codecs.limits),
            "network": self._network,
            "size": payload.size,
            "output": payload.output,
            "refine": payload.refine,
            "format": payload.format,
        }
        body = np.frombuffer(payload.body, np.uint8)

        def prepared(reply: Reply) -> Prepared:
            picture.charge()
            return Prepared(
                jobs=({self._input_name: reply.arrays["input"]},),
                state=(payload, picture, reply.meta["shape"]),
                stages=reply.meta["seconds"],
                release=picture.release,
            )

        try:
            opening = self._codecs.pool.submit(
                f"{STAGES}:open_picture",
                meta,
                {"body": body},
                descriptors=(picture.descriptor,),
                deadline=deadline,
                blame=ImageUnreadable,
            )
        except BaseException:
            picture.release()
            raise
        return _then(opening, prepared, otherwise=picture.release)

    def finish(
        self, prepared: Prepared, outputs: Sequence[Tensors], *, deadline: float
    ) -> Future[Finished]:
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

        def finished(reply: Reply) -> Finished:
            return Finished(value=_result(request, reply), stages=reply.meta["seconds"])

        rendering = self._codecs.pool.submit(
            f"{STAGES}:render",
            meta,
            {"mask": outputs[0][self._output_name]},
            descriptors=(picture.descriptor,),
            deadline=deadline,
            urgent=True,
        )
        return _then(rendering, finished)

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


def _then(
    first: Future[Reply],
    transform: Callable[[Reply], T],
    *,
    otherwise: Callable[[], None] = lambda: None,
) -> Future[T]:
    """A future of `transform(first)`. Cancelling it cancels `first`.

    `otherwise` runs when no result is delivered: `first` failed or was cancelled, or nobody waits.
    """
    second: Future[T] = Future()

    def settle(done: Future[Reply]) -> None:
        if done.cancelled():
            otherwise()
            second.cancel()
            second.set_running_or_notify_cancel()
            return
        try:
            value = transform(done.result())
        except BaseException as error:
            otherwise()
            if second.set_running_or_notify_cancel():
                second.set_exception(error)
            return
        if second.set_running_or_notify_cancel():
            second.set_result(value)
        else:
            otherwise()

    # Each would keep the other, pictures and all, until the garbage collector comes by. Until it is
    # settled, `first` is kept by whoever is to settle it.
    second.add_done_callback(partial(_cancel_too, weakref.ref(first)))
    first.add_done_callback(settle)
    return second


def _cancel_too(first: weakref.ref[Future[Reply]], second: Future[T]) -> None:
    if second.cancelled() and (waiting := first()) is not None:
        waiting.cancel()

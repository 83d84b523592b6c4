"""Reads one page: decodes the picture, finds its lines, and reads them in portions."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.errors import ImageUnreadable, PaddlepoolError, WorkerCrashed
from paddlepool.contracts.ports import RequestContext
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.concurrency import gather_or_cancel, in_thread_or_inline
from paddlepool.engine.process.replies import Reply
from paddlepool.engine.queue.job import INLINE_BYTES
from paddlepool.tasks.codecs.picture import Picture
from paddlepool.tasks.codecs.pool import Codecs, check_pixels, check_types
from paddlepool.tasks.ocr.parts import DETECT, ORIENT, RECOGNISE, Parts
from paddlepool.tasks.ocr.request import MOST_PAGES, Line, OcrRequest, Page
from paddlepool.tasks.transforms.config import DetResizeForTest
from paddlepool.tasks.transforms.labels import Text, text_from_best, text_from_classes

STAGES = "paddlepool.tasks.ocr.stages"
STEP = 64
"""Lines are padded to a multiple of this width, so that the lines of all requests have few shapes.
"""
MARGIN = 32
"""Minimum width of the padding: without any, the last character of a line is often misread."""
LEAST_MARGIN = 16
"""Minimum width of the padding of a line that is squeezed."""
SQUEEZED = 0.9
"""A line may be squeezed to this part of its width, so that it needs one step less."""
PADDLEX_LINES = 6
"""Number of lines that PaddleX pads to one width."""
LINE_BYTES = 4 << 20
"""Maximum bytes of the recogniser's inputs in one portion; one line has at most 1.9 MB."""
PORTIONS = 2
"""Portions of a page that are read at a time: the recogniser has work while lines are cut out."""

# Checks of the answers of codec processes (paddlepool.engine.process.replies.Check): names, types,
# shapes and sizes. RequestContext.infer() checks the models' inputs.


def check_opened(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    seconds = {"decode": float, "preprocess": float}
    check_types(meta, {"shape": [int] * 3, "size": [int] * 2, "seconds": seconds})
    for height, width in (meta["size"], meta["shape"][:2]):
        check_pixels(call, height * width)
    pages = len(arrays["places"])
    if not (pages == 0) == (call["place"] > 0) or pages > call["most_pages"]:
        raise ValueError(f"{pages} pages")
    shapes = {"input": ("float32", arrays["input"].shape), "places": ("int32", (pages,))}
    _check_arrays(arrays, **shapes)


def check_turned(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    check_types(meta, {"shape": [int] * 3, "seconds": {"preprocess": float}})
    if sorted(meta["shape"]) != sorted(call["shape"]):
        raise ValueError("a turned picture has other sides")
    _check_arrays(arrays, input=("float32", arrays["input"].shape))


def check_found(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    check_types(meta, {"seconds": {"postprocess": float}})
    count = len(arrays["widths"])
    if count > call["boxes"]["max_candidates"]:
        raise ValueError(f"{count} lines")
    _check_arrays(arrays, boxes=("int32", (count, 4, 2)), widths=("int32", (count,)))


def check_cut(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    check_types(meta, {"seconds": {"postprocess": float}})
    widths, tall = call["widths"], call["tall"]
    _check_arrays(
        arrays,
        **{str(wide): ("float32", (widths.count(wide), 3, tall, wide)) for wide in set(widths)},
    )


def check_drawn(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    check_types(meta, {"seconds": {"encode": float}})
    height, width, _ = call["shape"]
    size = arrays["image"].size
    if not 0 < size <= (1 << 16) + 8 * height * width:
        raise ValueError(f"a file of {size} bytes")
    _check_arrays(arrays, image=("uint8", (size,)))


def _check_arrays(arrays: Tensors, **expected: tuple[str, tuple[int, ...]]) -> None:
    if {name: (array.dtype.name, array.shape) for name, array in arrays.items()} != expected:
        raise ValueError(f"arrays other than {expected}")


CHECKS = {
    "open_page": check_opened,
    "turn_page": check_turned,
    "find_lines": check_found,
    "cut_lines": check_cut,
    "draw_lines": check_drawn,
}
"""Checks of the replies of codec processes, by the name of the function in STAGES."""


class PageReader:
    """Reads one page of a request; the page is kept in the shared memory of `picture`."""

    def __init__(
        self,
        parts: Parts,
        codecs: Codecs,
        picture: Picture,
        payload: OcrRequest,
        context: RequestContext,
    ) -> None:
        self._parts, self._codecs, self._picture = parts, codecs, picture
        self._payload, self._context = payload, context
        self._limits = asdict(codecs.limits)
        self._detection = parts.detection(payload)

    async def open(self, body: bytes, place: int = 0) -> list[int]:
        """Decode a page of a picture, turn it upright if the request says so, and prepare read().

        Counts the page against the memory for pictures and the caller's quota. `place` is one of
        pages_of(). For 0, returns pages_of() the picture, at most MOST_PAGES + 1 or, with
        `first_page`, one; else an empty list. Raises InputError for a bad picture, Overloaded,
        QuotaExceeded, and the errors of CodecPool.submit() and RequestContext.infer().
        """
        orienter = self._parts.orienter if self._payload.orientation else None
        detect = self._detector_meta()
        first = detect if orienter is None else {"operations": orienter.config.as_meta()}
        meta: dict[str, Any] = {"limits": self._limits, "format": self._payload.format}
        meta |= {"most_side": None, "least_side": 0} | first
        png, exact = self._payload.format == "png", self._parts.parameters.widths == "paddlex"
        meta |= {"detector": detect, "whole": png or exact}
        meta |= {"place": place, "most_pages": 1 if self._payload.first_page else MOST_PAGES + 1}
        reply = await self._call(
            "open_page", meta, {"body": np.frombuffer(body, np.uint8)}, crash_error=ImageUnreadable
        )
        self._picture.charge()
        self._shape = reply.meta["shape"]
        self._size = reply.meta["size"]
        CALLER.get().spend("pixels", self._size[0] * self._size[1])
        self._angle = 0
        places: list[int] = reply.arrays["places"].tolist()
        if orienter is not None:
            [scores] = await self._infer(ORIENT, orienter.input, reply.arrays["input"])
            self._angle = self._parts.angles[int(scores[0].argmax())]
            meta = detect | {"shape": self._shape, "turns": self._angle // 90}
            reply = await self._call("turn_page", meta, {})
            self._shape = reply.meta["shape"]
            if self._angle % 180:
                self._size.reverse()
        self._input = reply.arrays["input"]
        return places

    async def read(self) -> Page:
        """Find the lines of the page and read them. Call open() before, and this only once.

        Raises the errors of CodecPool.submit() and RequestContext.infer().
        """
        [probabilities] = await self._infer(DETECT, self._parts.detector.input, self._input)
        del self._input
        detection = self._detection
        names = ("thresh", "box_thresh", "unclip_ratio")
        parameters = self._parts.boxes | {name: detection[name] for name in names}
        kind = self._parts.parameters.widths
        least = self._parts.least_width if kind == "paddlex" else 0
        line = (self._parts.line_height, least)
        meta = {"size": self._size, "boxes": parameters, "line": line}
        reply = await self._call("find_lines", meta, {"map": probabilities})
        self._boxes = reply.arrays["boxes"]
        widths = padded(reply.arrays["widths"], kind)
        texts: dict[int, Text] = {}
        limit = asyncio.Semaphore(PORTIONS)

        async def read_portion(places: list[int]) -> None:
            async with limit:
                read = await self._texts(places, widths[places].tolist())
            texts.update(zip(places, read, strict=True))

        columns = portions(widths, 3 * self._parts.line_height * 4)
        await gather_or_cancel([asyncio.ensure_future(read_portion(p)) for p in columns])
        boxes: list[Any] = [tuple(map(tuple, box)) for box in self._boxes.tolist()]
        return Page(
            width=self._size[1],
            height=self._size[0],
            angle=self._angle,
            lines=tuple(
                Line(texts[place].text, texts[place].score, box)
                for place, box in enumerate(boxes)
                if texts[place].score >= self._payload.min_score
            ),
            boxes=tuple(boxes),
            detection=detection,
        )

    async def draw(self) -> bytes:
        """Return the page as a PNG, with the boxes of all lines drawn on it. Call read() before.

        Raises the errors of CodecPool.submit().
        """
        meta = {"shape": self._shape}
        reply = await self._call("draw_lines", meta, {"boxes": self._boxes})
        return reply.arrays["image"].tobytes()

    async def _texts(self, places: Sequence[int], widths: list[int]) -> list[Text]:
        """Cut out the lines with the indices `places`, and return their texts in the same order.

        `widths` are those of their inputs; equal widths must follow each other. Waits for the
        recogniser.
        """
        recogniser = self._parts.recogniser
        meta = {
            "shape": self._shape,
            "size": self._size,
            "operations": recogniser.config.as_meta(),
            "widths": widths,
            "tall": self._parts.line_height,
            "margin": LEAST_MARGIN if self._parts.parameters.widths == "steps" else 0,
        }
        reply = await self._call("cut_lines", meta, {"boxes": self._boxes[places]})
        jobs = [{recogniser.input: reply.arrays[str(width)]} for width in dict.fromkeys(widths)]
        outputs = await self._context.infer(jobs, part=RECOGNISE)
        work = partial(read_texts, outputs, self._parts.characters)
        with self._context.stage("postprocess"):
            if sum(array.nbytes for output in outputs for array in output.values()) > INLINE_BYTES:
                return await in_thread_or_inline("texts", work)
            return work()

    async def _infer(self, part: str, name: str, tensor: NDArray[Any]) -> list[NDArray[Any]]:
        [outputs] = await self._context.infer([{name: tensor}], part=part)
        return list(outputs.values())

    def _detector_meta(self) -> dict[str, Any]:
        operations = self._parts.detector.config.overridden(
            DetResizeForTest.__name__,
            limit_side_len=self._detection["limit"],
            limit_type=self._detection["limit_type"],
        )
        return {
            "operations": operations.as_meta(),
            "most_side": self._parts.parameters.most_side,
            "least_side": self._parts.least_side(self._payload),
        }

    async def _call(
        self,
        stage: str,
        meta: Mapping[str, Any],
        arrays: Tensors,
        *,
        crash_error: type[PaddlepoolError] = WorkerCrashed,
    ) -> Reply:
        """Run a function of `stages` in a codec process. All but open_page() are urgent calls."""
        reply = await self._codecs.pool.submit(
            f"{STAGES}:{stage}",
            meta,
            arrays,
            descriptors=(self._picture.descriptor,),
            deadline=self._context.deadline,
            crash_error=crash_error,
            urgent=stage != "open_page",
        )
        self._context.add_seconds(reply.meta["seconds"])
        return reply


def padded(widths: NDArray[Any], kind: Literal["steps", "paddlex"]) -> NDArray[Any]:
    """Return the width to which each line is padded; `kind` is `Parameters.widths`.

    For "steps", MARGIN is added and the sum rounded up to a multiple of STEP, or to one STEP less
    if the line, SQUEEZED, and LEAST_MARGIN fit into it. For "paddlex", the lines are sorted by
    width, and PADDLEX_LINES of them at a time get the width of the widest.
    """
    if kind == "steps":
        wide = -(-(widths + MARGIN) // STEP) * STEP
        return np.where(SQUEEZED * widths + LEAST_MARGIN <= wide - STEP, wide - STEP, wide)
    result = np.empty_like(widths)
    order = np.argsort(widths, kind="stable")
    for first in range(0, len(order), PADDLEX_LINES):
        places = order[first : first + PADDLEX_LINES]
        result[places] = widths[places].max()
    return result


def portions(widths: NDArray[Any], bytes_a_column: int) -> Iterator[list[int]]:
    """Yield lists of indices of lines, widest line first, each of at most LINE_BYTES.

    Short runs come last, so that the predictors end at about the same time. `bytes_a_column` is the
    size in bytes of a line one pixel wide. A line of more than LINE_BYTES is a list of its own.
    """
    portion: list[int] = []
    size = 0
    for place in np.argsort(-widths, kind="stable").tolist():
        line = int(widths[place]) * bytes_a_column
        if portion and size + line > LINE_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(place)
        size += line
    if portion:
        yield portion


def read_texts(outputs: Sequence[Tensors], characters: Sequence[str]) -> list[Text]:
    """Return the text of each line in the recogniser's outputs, in their order.

    An output has the scores of all classes (lines, steps, classes), or the best class of each step
    and its score, both (lines, steps).
    """
    texts: list[Text] = []
    for output in outputs:
        scores, *classes = sorted(output.values(), key=lambda array: array.dtype.kind)
        if classes:
            texts += text_from_best(classes[0], scores, characters)
        else:
            texts += text_from_classes(scores, characters)
    return texts

"""Pipeline of one composed model: find the lines of each picture, then read them.

Pictures are decoded, searched and cut in codec processes; see `stages`. This module loads no
picture library.
"""

import difflib
from typing import Any

import numpy as np

from paddlepool.contracts.errors import (
    BackendError,
    InputError,
    InvalidParameter,
    TooManyInputs,
)
from paddlepool.contracts.ports import RequestContext, ServedModelInfo
from paddlepool.tasks.codecs.pool import Codecs
from paddlepool.tasks.ocr.parts import ORIENT, Parts
from paddlepool.tasks.ocr.reader import CHECKS, STAGES, PageReader
from paddlepool.tasks.ocr.request import MOST_PAGES, OcrRequest, OcrResult, Page

RGB = 3
"""Bytes of a pixel."""
SIMILAR = 0.95
"""Least share of equal characters in a self-test's answer, and of boxes near the expected ones."""
NEAR = 16
"""Boxes are near if no coordinate of a corner differs by more pixels than this. bfloat16 moves
some corners that far."""


def _check_pages(count: int, *, png: bool) -> None:
    """Raise InvalidParameter for several pages if `png`, and TooManyInputs above MOST_PAGES."""
    if png and count > 1:
        raise InvalidParameter(
            f"format=png draws one page, received {count}",
            parameter="format",
            limit="json, text",
            received=count,
        )
    if count > MOST_PAGES:
        raise TooManyInputs(
            f"the pictures have more than {MOST_PAGES} pages, which is the limit",
            limit=MOST_PAGES,
            received=f"more than {MOST_PAGES}",
        )


class OcrPipeline:
    """Implements ComposedPipeline; a payload is an OcrRequest, a value an OcrResult."""

    def __init__(self, info: ServedModelInfo, *, codecs: Codecs) -> None:
        """Read the parts' files. Raises ConfigError as Parts() does."""
        self._parts = Parts(info)
        self._codecs = codecs
        codecs.pool.checks |= {f"{STAGES}:{stage}": check for stage, check in CHECKS.items()}

    async def run(self, payload: OcrRequest, context: RequestContext) -> OcrResult:
        """Read the pages of the pictures one after another; one page is in memory at a time.

        Raises InputError for a bad picture, an option that the model does not support, or too many
        pages. Also raises Overloaded, QuotaExceeded, OSError, and the errors of CodecPool.submit()
        and RequestContext.infer().
        """
        if payload.orientation and self._parts.orienter is None:
            raise InvalidParameter(
                f"orientation needs a model with the part {ORIENT}; this one has none",
                parameter="orientation",
            )
        most = self._parts.parameters.most_side
        if payload.limit is not None and payload.limit > most:
            raise InvalidParameter(
                f"limit is {payload.limit}; this model searches at most {most} pixels a side",
                parameter="limit",
                limit=most,
                received=payload.limit,
            )
        count, png = len(payload.pictures), payload.format == "png"
        _check_pages(count, png=png)
        pages: list[Page] = []
        image = None
        for number, body in enumerate(payload.pictures, 1):
            places, done = [0], 0
            while done < len(places):
                with self._codecs.pictures.open(RGB * self._codecs.limits.pixels) as picture:
                    reader = PageReader(self._parts, self._codecs, picture, payload, context)
                    try:
                        opened = await reader.open(body, places[done])
                    except InputError as error:
                        if count == len(places) == 1:
                            raise
                        page = f", page {done + 1}" if done else ""
                        raise error.about(f"picture {number}{page}") from None
                    if not done:
                        places = opened
                        _check_pages(len(pages) + len(places) + count - number, png=png)
                    pages.append(await reader.read())
                    if png:
                        image = await reader.draw()
                done += 1
        return OcrResult(pages=tuple(pages), image=image)

    def payload_of(self, sample: bytes) -> OcrRequest:
        """Return the request with default options for a sample, the bytes of a picture."""
        return OcrRequest(pictures=(sample,))

    def answer_of(self, value: OcrResult) -> list[dict[str, Any]]:
        """Return the lines of all pages as JSON values: text, score and corners."""
        return [
            {"text": line.text, "score": round(line.score, 4), "box": list(map(list, line.box))}
            for page in value.pages
            for line in page.lines
        ]

    def check(self, answer: Any, expected: Any) -> None:
        """Raise BackendError if an answer of answer_of() differs too much from the expected one.

        That is so if the share of equal characters, or of expected boxes with a box near them
        (NEAR), is below SIMILAR. A lower precision changes a few.
        """
        text, wanted = ("\n".join(line["text"] for line in lines) for lines in (answer, expected))
        similar = difflib.SequenceMatcher(None, text, wanted, autojunk=False).ratio()
        boxes = np.array([line["box"] for line in answer], np.int64).reshape(-1, 4, 2)
        near = [
            len(boxes) > 0 and np.abs(boxes - line["box"]).max(axis=(1, 2)).min() <= NEAR
            for line in expected
        ]
        if similar < SIMILAR or (near and np.mean(near) < SIMILAR):
            raise BackendError(
                f"{similar:.1%} of the characters and {sum(near)} of {len(near)} boxes are as "
                f"expected; received {text[:200]!r} instead of {wanted[:200]!r}"
            )

    def close(self) -> None:
        """Do nothing: the codecs are shared and belong to `paddlepool.main`."""

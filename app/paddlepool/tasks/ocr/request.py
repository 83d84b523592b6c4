"""A request to `/ocr`: its options, with their types, limits and descriptions, and the result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from paddlepool.contracts.errors import FileMissing
from paddlepool.contracts.tensors import STRINGS, TaskTensors, Tensors, TensorSpec, strings_of
from paddlepool.settings.server import MIB, Bytes, Settings
from paddlepool.tasks.options import Options, schemas

MOST_PICTURES = 16
"""Maximum pictures of one request."""
MOST_PAGES = 64
"""Maximum pages of all pictures of a request; a TIFF may have several."""
MOST_SIDE = 4000

Share = Annotated[float, Field(ge=0, le=1)]
Corner = tuple[int, int]


class OcrOptions(Options):
    """The options of `/ocr`. Each is a parameter of the query, a field of the form or of JSON."""

    format: Literal["json", "text", "png"] = Field(
        "json",
        description="`json`: lines with scores and corners. `text`: the text alone, a line for "
        "each line. `png`: the picture with the boxes drawn.",
    )
    min_score: Share = Field(0.0, description="Leaves out lines with a lower score.")
    limit: Annotated[int, Field(ge=32, le=MOST_SIDE)] | None = Field(
        None,
        description="The longest side, in pixels, on which text is searched; a larger page is "
        "reduced to it. Left out: what the model says.",
    )
    orientation: bool = Field(
        False,
        description="Turn pages by 90, 180 or 270 degrees first, if that makes them upright; needs "
        "a model with the part `orient`.",
    )


OPTIONS = schemas(OcrOptions)
"""The JSON schemas of the options by name."""


class OcrRequest(OcrOptions):
    """Pictures and options, including options that only PaddleX's requests have.

    None stands for the model's own value. `limit_type` says what `limit` means: `min`, a lower
    limit for the shorter side, or `max`, an upper limit for the longer side. A `limit` without a
    type is a `max`. With `first_page`, the further pages of a TIFF are ignored.
    """

    pictures: Annotated[tuple[bytes, ...], Field(min_length=1, max_length=MOST_PICTURES)]
    first_page: bool = False
    limit_type: Literal["min", "max"] | None = None
    thresh: Share | None = None
    box_thresh: Share | None = None
    unclip_ratio: Annotated[float, Field(gt=0, le=10)] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text, its score from 0 to 1, and its corners clockwise from the top left."""

    text: str
    score: float
    box: tuple[Corner, Corner, Corner, Corner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: its lines in reading order, with corners in pixels of the upright picture.

    `width` and `height` are those of the upright picture, which was turned by `angle` degrees
    anticlockwise to make it so. `lines` contains the lines with at least the request's `min_score`,
    `boxes` the corners of all lines. `detection` is the result of Parts.detection().
    """

    width: int
    height: int
    angle: int
    lines: tuple[Line, ...]
    boxes: tuple[tuple[Corner, ...], ...]
    detection: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrResult:
    """The pages and, if the format is `png`, the picture with the boxes drawn on it."""

    pages: tuple[Page, ...]
    image: bytes | None = None

    @property
    def text(self) -> str:
        """The texts of all lines, each with a line feed after it; form feeds separate pages."""
        return "\f".join("".join(f"{line.text}\n" for line in page.lines) for page in self.pages)


class OcrSettings(BaseModel):
    """Settings of the task; each variable is PADDLEPOOL_ and the field's name in capitals."""

    ocr_max_bytes: Bytes = Field(30 * MIB, description="Maximum request body of /ocr, in bytes.")


def max_bytes(settings: Settings) -> int:
    return settings.of(OcrSettings).ocr_max_bytes


def tensors(settings: Settings) -> TaskTensors:
    return TaskTensors(
        inputs=(TensorSpec("image", STRINGS, (1,)),),
        outputs=(
            TensorSpec("texts", STRINGS, (-1,)),
            TensorSpec("scores", "float32", (-1,)),
            TensorSpec("boxes", "int32", (-1, 4, 2)),
            TensorSpec("size", "int32", (2,)),
            TensorSpec("angle", "int32", (1,)),
        ),
        parameters=("min_score", "limit", "orientation"),
        read=_read,
        write=_write,
        max_bytes=max_bytes(settings),
    )


def _read(inputs: Tensors, parameters: Mapping[str, Any]) -> OcrRequest:
    picture: bytes = inputs["image"].item(0)
    if not picture:
        raise FileMissing("image: the picture has 0 bytes", received=0)
    return OcrRequest(pictures=(picture,), first_page=True, **parameters)


def _write(result: OcrResult) -> Tensors:
    [page] = result.pages
    lines = page.lines
    return {
        "texts": strings_of([line.text.encode() for line in lines], (len(lines),)),
        "scores": np.array([line.score for line in lines], np.float32),
        "boxes": np.array([line.box for line in lines], np.int32).reshape(-1, 4, 2),
        "size": np.array([page.width, page.height], np.int32),
        "angle": np.array([page.angle], np.int32),
    }

"""A request to `/segment` with its options checked and defaults applied, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.contracts.errors import InvalidParameter
from app.tasks.segment.options import (
    DEFAULT_REFINE,
    MEDIA_TYPES,
    Colour,
    read_colour,
    read_word,
)
from app.tasks.segment.scene_request import PLAIN, Scene, read_scene


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRequest:
    """One picture and what to make of it.

    `threshold` None leaves the mask soft. `background` is the second picture's file, if any.
    `labels` requests the pixels of the result, too.
    """

    body: bytes
    background: bytes | None = None
    output: str
    format: str
    size: str
    bg_color: Colour
    crop: bool
    refine: str
    threshold: float | None
    scene: Scene = PLAIN
    colours: str = "estimated"
    labels: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The foreground's place in the upright picture, in pixels; all 0 when there is none."""

    top: int
    left: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """The encoded picture. `width` and `height` are its own; `box` is in the uncropped picture.

    `confidence` is the mean of |2p - 1| over the mask: 1 if the network is sure everywhere, 0 if
    nowhere. `labels` are a mask's pixels row by row, 0 to 255 each, if they were requested.
    """

    image: bytes
    format: str
    output: str
    width: int
    height: int
    box: Box
    confidence: float
    labels: bytes | None = None


def read_options(
    body: bytes,
    options: Mapping[str, str],
    *,
    background: bytes | None = None,
    preferred_format: str | None = None,
    labels: bool = False,
) -> SegmentRequest:
    """Check the options by name; without `format`, `preferred_format` of the Accept header is used.

    Raises InvalidParameter that names the option and its accepted values.
    """
    output = read_word(options, "output")
    # JPEG has no alpha and blurs a mask's edge, so only a composite may be a JPEG.
    formats = tuple(MEDIA_TYPES) if output == "composite" else ("png", "webp")
    preferred = preferred_format or "png"
    if preferred not in formats:
        preferred = "png"
    file_format = read_word(
        options, "format", default=preferred, accepted=formats, when=f"for output={output}"
    )
    colour = _colour(options.get("bg_color"), output)
    if file_format == "jpg" and colour[3] < 255:
        raise InvalidParameter(
            "bg_color is translucent, which format=jpg cannot hold; use format=png or format=webp",
            limit="png, webp",
        )
    crop = _flag(options, "crop")
    return SegmentRequest(
        body=body,
        background=background,
        output=output,
        format=file_format,
        size=read_word(options, "size"),
        bg_color=colour,
        crop=crop,
        refine=read_word(options, "refine", default=DEFAULT_REFINE[output]),
        threshold=_threshold(options.get("threshold")),
        colours=read_word(options, "colours"),
        scene=read_scene(options, output=output, crop=crop, has_background=background is not None),
        labels=labels,
    )


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidParameter(f"{name} must be one of true, false", limit="true, false")
    return value == "true"


def _threshold(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InvalidParameter("threshold must be a number from 0 to 1", limit="0 to 1") from None
    if not 0.0 <= value <= 1.0:  # also rejects NaN
        raise InvalidParameter(
            f"threshold must be from 0 to 1, received {value}", limit="0 to 1", received=str(value)
        )
    return value


def _colour(text: str | None, output: str) -> Colour:
    if text is None:
        return (255, 255, 255, 255)
    if output != "composite":
        raise InvalidParameter("bg_color needs output=composite", limit="composite")
    colour = read_colour(text)
    if colour is None:
        raise InvalidParameter(
            "bg_color must be #rgb, #rgba, #rrggbb, #rrggbbaa or a CSS colour name "
            "(in a query, # is written %23)",
            limit="#rgb, #rgba, #rrggbb, #rrggbbaa, CSS name",
        )
    return colour

"""A request to `/segment` with its options checked and defaults applied, and its result."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from app.contracts.errors import FileMissing, InvalidParameter
from app.contracts.tensors import STRINGS, TaskTensors, Tensors, TensorSpec, strings_of
from app.settings.server import MIB, Bytes, Settings
from app.tasks.segment.options import (
    BLUR_PERCENT,
    DEFAULT_REFINE,
    DEFAULT_SHADOW_OPACITY,
    MARGIN_PERCENT,
    MARGIN_PIXELS,
    MEDIA_TYPES,
    OPTIONS,
    SCALE_PERCENT,
    SHADOW_OPACITY,
    Colour,
    read_colour,
    read_word,
)

_NUMBER = re.compile(r"\d{1,4}(?:\.\d{1,3})?", re.ASCII)
_ORIGINAL = "original"

Length = tuple[float, str]
"""A number and its unit, `px` or `%` of the subject's own side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The place of the foreground and its background; the defaults leave the result unchanged.

    `bg_blur` is the blur's standard deviation in percent of the picture's longer side. `margins`
    are top, right, bottom, left. `scale` is the percentage of the canvas that the subject fills.
    `position` is the percentage of the free room that is left of the subject, and above it.
    `shadow` is the shadow's opacity, from 0 to 1.
    """

    bg_fit: str = "cover"
    bg_blur: float | None = None
    margins: tuple[Length, Length, Length, Length] = ((0.0, "px"),) * 4
    scale: float | None = None
    position: tuple[float, float] | None = None
    shadow: float | None = None


def read_scene(
    options: Mapping[str, str], *, output: str, crop: bool, has_background: bool
) -> Scene:
    if has_background and output != "composite":
        raise InvalidParameter("bg_image needs output=composite", limit="composite")
    for name, wanted, there in (
        ("bg_fit", "bg_image", has_background),
        ("bg_blur", "output=composite", output == "composite"),
        ("crop_margin", "crop=true", crop),
        ("shadow_opacity", "shadow=drop", options.get("shadow") == "drop"),
    ):
        if name in options and not there:
            raise InvalidParameter(f"{name} needs {wanted}", limit=wanted)
    if "bg_blur" in options and has_background:
        raise InvalidParameter("bg_blur blurs the picture's own background; leave out bg_image")
    shadow = read_word(options, "shadow")
    if shadow == "drop" and output == "mask":
        raise InvalidParameter(
            "shadow=drop needs output=cutout or output=composite", limit="cutout, composite"
        )
    scale = None
    if (text := options.get("scale", _ORIGINAL)) != _ORIGINAL:
        scale = _percent("scale", text, *SCALE_PERCENT, also=_ORIGINAL)
    blur = options.get("bg_blur")
    opacity = options.get("shadow_opacity", str(DEFAULT_SHADOW_OPACITY))
    return Scene(
        bg_fit=read_word(options, "bg_fit"),
        bg_blur=None if blur is None else _percent("bg_blur", blur, *BLUR_PERCENT),
        margins=_margins(options.get("crop_margin", "0px")),
        scale=scale,
        position=_position(options.get("position", _ORIGINAL if scale is None else "center")),
        shadow=_opacity(opacity) if shadow == "drop" else None,
    )


def _percent(name: str, text: str, low: float, high: float, *, also: str = "") -> float:
    limit = f"{low:g}% to {high:g}%"
    accepted = f"{also} or {limit}" if also else limit
    value = _amount(text, "%")
    if value is None:
        raise InvalidParameter(
            f"{name} must be {accepted} (in a query, % is written %25)", limit=limit
        )
    if not low <= value <= high:
        received = f"{value:g}%"
        raise InvalidParameter(
            f"{name} must be {accepted}, received {received}", limit=limit, received=received
        )
    return value


def _amount(text: str, unit: str) -> float | None:
    """Return the number before the unit, or None if the text is anything else."""
    number = text.strip().removesuffix(unit)
    if number == text.strip() or not _NUMBER.fullmatch(number):
        return None
    return float(number)


def _parts(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _margins(text: str) -> tuple[Length, Length, Length, Length]:
    """Read margins as in CSS: one, two or four values."""
    lengths = [_margin(part) for part in _parts(text)[:5]]
    if len(lengths) not in (1, 2, 4):
        raise InvalidParameter(
            f"crop_margin has {len(lengths) if len(lengths) < 5 else 'more than 4'} values; "
            "it has one, two (top and bottom, left and right) or four (top, right, bottom, left)",
            limit="1, 2 or 4 values",
        )
    top, right, bottom, left = (lengths * 4)[:4]
    return top, right, bottom, left


def _margin(text: str) -> Length:
    limit = f"0px to {MARGIN_PIXELS}px, 0% to {MARGIN_PERCENT}%"
    for unit, most in (("px", MARGIN_PIXELS), ("%", MARGIN_PERCENT)):
        value = _amount(text, unit)
        if value is None or (unit == "px" and value != int(value)):
            continue
        if value > most:
            received = f"{value:g}{unit}"
            raise InvalidParameter(
                f"crop_margin is at most {MARGIN_PIXELS}px or {MARGIN_PERCENT}% of the subject "
                f"a side, received {received}",
                limit=limit,
                received=received,
            )
        return value, unit
    raise InvalidParameter(
        f"crop_margin must be whole pixels or percent of the subject: {limit} "
        "(in a query, % is written %25)",
        limit=limit,
    )


def _position(text: str) -> tuple[float, float] | None:
    """Read the position; returns None if the subject stays in place."""
    if text == _ORIGINAL:
        return None
    parts = ["50%"] if text == "center" else _parts(text)
    if len(parts) not in (1, 2):
        raise InvalidParameter(
            "position must be original, center, one value for both directions, or two "
            "(from the left, from the top), 0% to 100% each",
            limit="1 or 2 values",
        )
    values = [_percent("position", part, 0, 100, also="original, center") for part in parts]
    return values[0], values[-1]


def _opacity(text: str) -> float:
    low, high = SHADOW_OPACITY
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InvalidParameter(
            f"shadow_opacity must be a whole number from {low} to {high}", limit=f"{low} to {high}"
        )
    if not low <= int(text) <= high:
        raise InvalidParameter(
            f"shadow_opacity must be from {low} to {high}, received {int(text)}",
            limit=f"{low} to {high}",
            received=int(text),
        )
    return int(text) / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRequest:
    """One picture and the options for its result.

    If `labels` is set, the result has the mask's pixels in addition to the encoded file.
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
    scene: Scene = Scene()
    colours: str = "estimated"
    labels: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForegroundBox:
    """The foreground's place in the upright picture, in pixels; all 0 when there is none."""

    top: int
    left: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """The encoded picture.

    `box` is a place in the uncropped picture; `labels` are the pixels of a mask, row by row.
    `confidence` is the mean of |2p - 1| over the mask: 1 if the network is sure everywhere.
    """

    image: bytes
    format: str
    output: str
    width: int
    height: int
    box: ForegroundBox
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
    """Check the options and apply the defaults; `preferred_format` comes from the Accept header.

    Raises InvalidParameter, which names the option and its accepted values.
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
    crop = read_word(options, "crop", default="false", accepted=("true", "false")) == "true"
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


class SegmentSettings(BaseModel):
    """Settings of the task; each variable is PADDLEPOOL_ and the field's name in capitals."""

    segment_max_bytes: Bytes = Field(
        12 * MIB, description="Maximum request body of /segment, in bytes."
    )


INPUTS = (TensorSpec("image", STRINGS, (1,)), TensorSpec("bg_image", STRINGS, (1,)))
OUTPUTS = (
    TensorSpec("image", STRINGS, (1,)),
    TensorSpec("size", "int32", (2,)),
    TensorSpec("foreground_box", "int32", (4,)),
    TensorSpec("confidence", "float32", (1,)),
)
MAX_CHARACTERS = 1_024
"""Maximum characters of a parameter, the same as for a form."""


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
    """Convert a parameter to the text that a query would contain."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > MAX_CHARACTERS:
        raise InvalidParameter(f"{name} has {len(text)} characters, the limit is {MAX_CHARACTERS}")
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

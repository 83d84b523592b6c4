"""A request to `/segment`: the table of its options, the functions that read them, and the result.

`SegmentOptions` of the Python client repeats the options; a test compares the two. An option that
is valid only together with another one has no `default` here: pages generated from the OpenAPI
document would send the default without the other option.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL.ImageColor import colormap, getrgb  # only the names of CSS colours; loads no decoder
from pydantic import BaseModel, Field

from paddlepool.contracts.errors import FileMissing, InvalidParameter
from paddlepool.contracts.tensors import STRINGS, TaskTensors, Tensors, TensorSpec, strings_of
from paddlepool.settings.server import MIB, Bytes, Settings

SIZE_PIXELS = {"preview": 250_000, "medium": 1_500_000, "hd": 4_000_000}
"""Maximum pixels of the result, by `size`; `full` is not limited here."""
MEDIA_TYPES = {"png": "image/png", "webp": "image/webp", "jpg": "image/jpeg"}
BLUR_PERCENT = (0.5, 10.0)
SCALE_PERCENT = (10.0, 100.0)
MARGINS = {"px": 500, "%": 50}


def _words(*accepted: str, **default: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(accepted), **default}


TEXT = {"type": "string"}

Options = Mapping[str, str]
"""The options of a request, as text by name."""

OPTIONS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "output": (
        _words("cutout", "mask", "composite", default="cutout"),
        "What to make from the picture.",
    ),
    "format": (
        _words(*MEDIA_TYPES),
        "Encoding; jpg for composite only. Left out: what Accept prefers, else png.",
    ),
    "size": (
        _words("full", *SIZE_PIXELS, default="full"),
        "Size of the result: `preview` is at most 0.25 MP, `medium` 1.5, `hd` 4.",
    ),
    "bg_color": (
        TEXT,
        "For composite: #rgb, #rgba, #rrggbb, #rrggbbaa or a CSS name; white if left out.",
    ),
    "crop": ({"type": "boolean", "default": False}, "Crop to the foreground box."),
    "refine": (
        _words("none", "guided", "matting"),
        "`guided` makes the mask follow the picture's edges; `matting` also looks "
        "for hair and fur beside them and takes up to a second more. Left out: guided for "
        "cutout, none for mask, guided for composite.",
    ),
    "threshold": (
        {"type": "number", "minimum": 0, "maximum": 1},
        "Makes the mask binary: opaque from this value on.",
    ),
    "colours": (
        _words("estimated", "original", default="estimated"),
        "`estimated` takes the old background's colour out of partial edges.",
    ),
    "bg_fit": (
        _words("cover", "contain"),
        "How `bg_image` fills the canvas: `cover` crops it, `contain` shows all of it "
        "on `bg_color`. Left out: cover.",
    ),
    "bg_blur": (
        TEXT,
        "For composite: the picture's own background, blurred; the blur's standard deviation "
        f"in percent of the longer side, {BLUR_PERCENT[0]:g}% to {BLUR_PERCENT[1]:g}%, as `2%`.",
    ),
    "crop_margin": (
        TEXT,
        "With crop: room around the subject. One, two or four values (top, right, bottom, left), "
        f"each up to {MARGINS['px']}px or {MARGINS['%']}% of the subject's side, as `10%`. "
        "Left out: 0px.",
    ),
    "scale": (
        TEXT | {"default": "original"},
        "How much of the canvas the subject fills: `original`, or "
        f"{SCALE_PERCENT[0]:g}% to {SCALE_PERCENT[1]:g}%.",
    ),
    "position": (
        TEXT,
        "Where the subject stands: `original`, `center`, or how much of the free room is left of "
        "it and above it, 0% to 100%, as `50% 100%`. Left out: center with `scale`, else original.",
    ),
    "shadow": (
        _words("none", "drop", default="none"),
        "`drop`: a soft shadow behind the subject. Not for mask.",
    ),
    "shadow_opacity": (
        {"type": "integer", "minimum": 1, "maximum": 100},
        "With shadow=drop: how dark it is, in percent. Left out: 50.",
    ),
}
"""The options by name: JSON schema and description."""


def read_word(
    options: Options, name: str, default: str = "", accepted: Sequence[str] = (), when: str = ""
) -> str:
    """Read an option whose value is one of several words. Raises InvalidParameter.

    A missing option has the value `default`, or else the first word in OPTIONS. `accepted`
    restricts the words for this request.
    """
    words = accepted or OPTIONS[name][0]["enum"]
    value = options.get(name, default or words[0])
    if value not in words:
        listed = ", ".join(words)
        raise InvalidParameter(f"{name} must be one of {listed}{when}", limit=listed)
    return value


Colour = tuple[int, int, int, int]
"""Red, green, blue and alpha, 0 to 255."""

_HEX = re.compile(r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})")


def read_colour(text: str) -> Colour | None:
    """Read #rgb, #rgba, #rrggbb, #rrggbbaa, a CSS name or `transparent`."""
    name = text.strip().lower()
    if name == "transparent":
        return (0, 0, 0, 0)
    if name not in colormap and not _HEX.fullmatch(name):
        return None
    red, green, blue, alpha = (*getrgb(name), 255)[:4]
    return (red, green, blue, alpha)


_NUMBER = re.compile(r"\d{1,4}(?:\.\d{1,3})?", re.ASCII)

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


def read_scene(options: Options, *, output: str, crop: bool, has_background: bool) -> Scene:
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
    shadow = read_word(options, "shadow") == "drop"
    if shadow and output == "mask":
        raise InvalidParameter(
            "shadow=drop needs output=cutout or output=composite", limit="cutout, composite"
        )
    scale = options.get("scale", "original")
    position = options.get("position", "original" if scale == "original" else "center")
    blur = options.get("bg_blur")
    return Scene(
        scale=None if scale == "original" else _percent("scale", scale, *SCALE_PERCENT),
        bg_fit=read_word(options, "bg_fit"),
        bg_blur=None if blur is None else _percent("bg_blur", blur, *BLUR_PERCENT),
        margins=_margins(options.get("crop_margin", "0px")),
        position=None if position == "original" else _position(position),
        shadow=_opacity(options.get("shadow_opacity", "50")) if shadow else None,
    )


def _percent(name: str, text: str, low: float, high: float) -> float:
    value, limit = _amount(text, "%"), f"{low:g}% to {high:g}%"
    if value is not None and low <= value <= high:
        return value
    accepted = {"scale": "original or ", "position": "original, center or "}.get(name, "") + limit
    if value is None:
        raise InvalidParameter(
            f"{name} must be {accepted} (in a query, % is written %25)", limit=limit
        )
    raise InvalidParameter(
        f"{name} must be {accepted}, received {value:g}%", limit=limit, received=f"{value:g}%"
    )


def _amount(text: str, unit: str) -> float | None:
    """Return the number before the unit, or None if the text is anything else."""
    number, found, rest = text.strip().partition(unit)
    return float(number) if found and not rest and _NUMBER.fullmatch(number) else None


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
    limit = f"0px to {MARGINS['px']}px, 0% to {MARGINS['%']}%"
    unit = "px" if text.endswith("px") else "%"
    value = _amount(text, unit)
    if value is None or (unit == "px" and not value.is_integer()):
        raise InvalidParameter(
            f"crop_margin must be whole pixels or percent of the subject: {limit} "
            "(in a query, % is written %25)",
            limit=limit,
        )
    if value > MARGINS[unit]:
        raise InvalidParameter(
            f"crop_margin is at most {MARGINS['px']}px or {MARGINS['%']}% of the subject "
            f"a side, received {value:g}{unit}",
            limit=limit,
            received=f"{value:g}{unit}",
        )
    return value, unit


def _position(text: str) -> tuple[float, float]:
    parts = ["50%"] if text == "center" else _parts(text)
    if len(parts) not in (1, 2):
        raise InvalidParameter(
            "position must be original, center, one value for both directions, or two "
            "(from the left, from the top), 0% to 100% each",
            limit="1 or 2 values",
        )
    values = [_percent("position", part, 0, 100) for part in parts]
    return values[0], values[-1]


def _opacity(text: str) -> float:
    limit = "1 to 100"
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InvalidParameter(f"shadow_opacity must be a whole number from {limit}", limit=limit)
    percent = int(text)
    if not 1 <= percent <= 100:
        message = f"shadow_opacity must be from {limit}, received {percent}"
        raise InvalidParameter(message, limit=limit, received=percent)
    return percent / 100


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
    options: Options,
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
    preferred = preferred_format if preferred_format in formats else "png"
    file_format = read_word(options, "format", preferred, formats, when=f" for output={output}")
    if "bg_color" in options and output != "composite":
        raise InvalidParameter("bg_color needs output=composite", limit="composite")
    colour = read_colour(options.get("bg_color", "white"))
    if colour is None:
        raise InvalidParameter(
            "bg_color must be #rgb, #rgba, #rrggbb, #rrggbbaa or a CSS colour name "
            "(in a query, # is written %23)",
            limit="#rgb, #rgba, #rrggbb, #rrggbbaa, CSS name",
        )
    if file_format == "jpg" and colour[3] < 255:
        raise InvalidParameter(
            "bg_color is translucent, which format=jpg cannot hold; use format=png or format=webp",
            limit="png, webp",
        )
    crop = read_word(options, "crop", "false", ("true", "false")) == "true"
    threshold = options.get("threshold")
    return SegmentRequest(
        body=body,
        background=background,
        output=output,
        format=file_format,
        size=read_word(options, "size"),
        bg_color=colour,
        crop=crop,
        refine=read_word(options, "refine", "none" if output == "mask" else "guided"),
        threshold=None if threshold is None else _threshold(threshold),
        colours=read_word(options, "colours"),
        scene=read_scene(options, output=output, crop=crop, has_background=background is not None),
        labels=labels,
    )


def _threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidParameter("threshold must be a number from 0 to 1", limit="0 to 1") from None
    if not 0.0 <= value <= 1.0:  # also rejects NaN
        raise InvalidParameter(
            f"threshold must be from 0 to 1, received {value}", limit="0 to 1", received=str(value)
        )
    return value


class SegmentSettings(BaseModel):
    """Settings of the task; each variable is PADDLEPOOL_ and the field's name in capitals."""

    segment_max_bytes: Bytes = Field(
        30 * MIB, description="Maximum request body of /segment, in bytes."
    )


MAX_CHARACTERS = 1_024
"""Maximum characters of a parameter, the same as for a form."""


def tensors(settings: Settings) -> TaskTensors:
    return TaskTensors(
        inputs=(TensorSpec("image", STRINGS, (1,)), TensorSpec("bg_image", STRINGS, (1,))),
        outputs=(
            TensorSpec("image", STRINGS, (1,)),
            TensorSpec("size", "int32", (2,)),
            TensorSpec("foreground_box", "int32", (4,)),
            TensorSpec("confidence", "float32", (1,)),
        ),
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
    options = {}  # the texts that a query would contain
    for name in OPTIONS:
        if (value := parameters.get(name)) is None:
            continue
        options[name] = text = str(value).lower() if isinstance(value, bool) else str(value)
        if len(text) > MAX_CHARACTERS:
            raise InvalidParameter(
                f"{name} has {len(text)} characters, the limit is {MAX_CHARACTERS}"
            )
    return read_options(files["image"], options, background=files.get("bg_image"))


def _write(result: SegmentResult, _: Mapping[str, Any]) -> Tensors:
    box = result.box
    return {
        "image": strings_of([result.image], (1,)),
        "size": np.array([result.width, result.height], np.int32),
        "foreground_box": np.array([box.top, box.left, box.width, box.height], np.int32),
        "confidence": np.array([result.confidence], np.float32),
    }

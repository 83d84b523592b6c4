"""A request to `/segment`: its options, with their types, limits and descriptions, and the result.

`SegmentOptions` of the Python client repeats the options; a test compares the two. An option that
is valid only together with another one has no default in its schema: pages generated from the
OpenAPI document would send the default without the other option.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from paddlepool.contracts.errors import FileMissing, InvalidParameter
from paddlepool.contracts.tensors import STRINGS, TaskTensors, Tensors, TensorSpec, strings_of
from paddlepool.settings.server import MIB, Bytes, Settings
from paddlepool.tasks.options import Options, schemas

SIZE_PIXELS = {"preview": 250_000, "medium": 1_500_000, "hd": 4_000_000}
"""Maximum pixels of the result, by `size`; `full` is not limited here."""
MEDIA_TYPES = {"png": "image/png", "webp": "image/webp", "jpg": "image/jpeg"}
MARGINS = {"px": 500, "%": 50}

Colour = tuple[int, int, int, int]
"""Red, green, blue and alpha, 0 to 255."""
Length = tuple[float, Literal["px", "%"]]
"""A number of pixels, or of percent of the subject's own side."""
Margins = tuple[Length, Length, Length, Length]
"""Top, right, bottom, left."""
Share = Annotated[float, Field(ge=0, le=100)]

_HEX = re.compile(r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})")
_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)(%)", re.ASCII)
_LENGTH = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)(px|%)", re.ASCII)


def read_colour(text: str) -> Colour:
    """Read #rgb, #rgba, #rrggbb, #rrggbbaa, a CSS name or `transparent`.

    Raises ValueError for another text.
    """
    name = text.strip().lower()
    if name == "transparent":
        return (0, 0, 0, 0)
    from PIL.ImageColor import colormap, getrgb  # loads no decoder; few requests name a colour

    if name not in colormap and not _HEX.fullmatch(name):
        raise ValueError("not a colour")
    red, green, blue, alpha = (*getrgb(name), 255)[:4]
    return (red, green, blue, alpha)


def _lengths(text: str, pattern: re.Pattern[str], *counts: int) -> list[tuple[float, str]]:
    """Read numbers with units, separated by spaces or commas.

    Raises ValueError for a part that does not match the pattern, and for a number of parts that is
    not one of `counts`.
    """
    parts = text.replace(",", " ").split()
    matches = [match for part in parts if (match := pattern.fullmatch(part))]
    if len(parts) not in counts or len(matches) < len(parts):
        raise ValueError("not such numbers with units")
    return [(float(match[1]), match[2]) for match in matches]


def _percent(text: str) -> float:
    return _lengths(text, _PERCENT, 1)[0][0]


def _scale(text: str) -> float | None:
    return None if text == "original" else _percent(text)


def _position(value: Any) -> Any:
    """Read `original` as None, and `center` or one or two percentages as two numbers.

    One percentage or number stands for both. Values of other types stay as they are. Raises
    ValueError for another text.
    """
    if type(value) in (int, float):
        return float(value), float(value)
    if value == "original" or not isinstance(value, str):
        return None if value == "original" else value
    lengths = _lengths("50%" if value == "center" else value, _PERCENT, 1, 2)
    return lengths[0][0], lengths[-1][0]


def _margins(text: str) -> tuple[tuple[float, str], ...]:
    """Read one, two (vertical, horizontal) or four margins, as in CSS; return four.

    Raises ValueError for another text.
    """
    return tuple((_lengths(text, _LENGTH, 1, 2, 4) * 4)[:4])


def _checked(margins: Margins) -> Margins:
    for number, unit in margins:
        if not 0 <= number <= MARGINS[unit] or (unit == "px" and not number.is_integer()):
            raise ValueError("too large, negative or not whole")
    return margins


def _text(read: Callable[[str], Any]) -> BeforeValidator:
    """Return a validator that converts texts with `read` and leaves other values as they are."""
    return BeforeValidator(
        lambda value: read(value) if isinstance(value, str) else value, json_schema_input_type=str
    )


FORMATS: Mapping[str, tuple[str, ...]] = {
    "cutout": ("png", "webp"),
    "mask": ("png", "webp"),
    "composite": tuple(MEDIA_TYPES),
    "labels": ("png",),
}
"""Possible formats by `output`. JPEG has no alpha and blurs a mask's edge."""
WITHOUT_LABELS = (
    *("crop", "refine", "threshold", "colours", "scale", "position", "shadow"),
    *("bg_color", "bg_blur", "crop_margin", "shadow_opacity"),
)
"""Options that have no effect on output=labels and are rejected with it."""


class SegmentOptions(Options):
    """The options of `/segment`. Each is a parameter of the query or of the form.

    `scale`, `bg_blur` and `position` are percentages: numbers here, `80%` in a query. `position`
    has two percentages of the free room: the part to the left of the subject, and the part above
    it. If `scale` is None, the subject keeps its size in the picture; if `position` is None, its
    place.
    """

    expected: ClassVar = {
        "bg_color": "#rgb, #rgba, #rrggbb, #rrggbbaa or a CSS colour name",
        "bg_blur": "0.5% to 10%",
        "crop_margin": "one, two (top and bottom, left and right) or four values (top, right, "
        f"bottom, left) in whole pixels or percent of the subject, 0px to {MARGINS['px']}px, 0% to "
        f"{MARGINS['%']}%",
        "scale": "original or 10% to 100%",
        "position": "original, center, or one or two values (from the left, from the top) of 0% "
        "to 100%",
    }
    limits: ClassVar = {
        "bg_color": "#rgb, #rgba, #rrggbb, #rrggbbaa, CSS name",
        "scale": "10% to 100%",
    }

    output: Literal["cutout", "mask", "composite", "labels"] = Field(
        "cutout",
        description="What to make from the picture. `labels`: the class of each pixel as its grey "
        "value, from a semantic segmentation model.",
    )
    format: Literal["png", "webp", "jpg"] = Field(
        default_factory=lambda: "png",
        description="Encoding; jpg for composite only. Left out: what Accept prefers, else png.",
    )
    size: Literal["full", "preview", "medium", "hd"] = Field(
        "full",
        description="Size of the result: `preview` is at most 0.25 MP, `medium` 1.5, `hd` 4.",
    )
    bg_color: Annotated[Colour, _text(read_colour)] = Field(
        default_factory=lambda: (255, 255, 255, 255),
        description="For composite: #rgb, #rgba, #rrggbb, #rrggbbaa or a CSS name; white if left "
        "out.",
    )
    crop: bool = Field(False, description="Crop to the foreground box.")
    refine: Literal["none", "guided", "matting"] = Field(
        default_factory=lambda options: (
            "none" if options["output"] in ("mask", "labels") else "guided"
        ),
        description="`guided` makes the mask follow the picture's edges; `matting` also looks "
        "for hair and fur beside them and takes up to a second more. Left out: guided for "
        "cutout, none for mask, guided for composite.",
    )
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Makes the mask binary: opaque from this value on."
    )
    colours: Literal["estimated", "original"] = Field(
        "estimated",
        description="`estimated` takes the old background's colour out of partial edges.",
    )
    bg_fit: Literal["cover", "contain"] = Field(
        default_factory=lambda: "cover",
        description="How `bg_image` fills the canvas: `cover` crops it, `contain` shows all of it "
        "on `bg_color`. Left out: cover.",
    )
    bg_blur: Annotated[float, Field(ge=0.5, le=10), _text(_percent)] | None = Field(
        None,
        description="For composite: the picture's own background, blurred; the blur's standard "
        "deviation in percent of the longer side, 0.5% to 10%, as `2%`.",
    )
    crop_margin: Annotated[Margins, _text(_margins), AfterValidator(_checked)] = Field(
        default_factory=lambda: ((0.0, "px"),) * 4,
        description="With crop: room around the subject. One, two or four values (top, right, "
        f"bottom, left), each up to {MARGINS['px']}px or {MARGINS['%']}% of the subject's side, as "
        "`10%`. Left out: 0px.",
    )
    scale: Annotated[Annotated[float, Field(ge=10, le=100)] | None, _text(_scale)] = Field(
        None,
        description="How much of the canvas the subject fills: `original`, or 10% to 100%.",
        json_schema_extra={"default": "original"},
    )
    position: Annotated[
        tuple[Share, Share] | None, BeforeValidator(_position, json_schema_input_type=str)
    ] = Field(
        default_factory=lambda options: None if options["scale"] is None else (50.0, 50.0),
        description="Where the subject stands: `original`, `center`, or how much of the free room "
        "is left of it and above it, 0% to 100%, as `50% 100%`. Left out: center with `scale`, "
        "else original.",
    )
    shadow: Literal["none", "drop"] = Field(
        "none", description="`drop`: a soft shadow behind the subject. Not for mask."
    )
    shadow_opacity: Annotated[int, Field(ge=1, le=100)] = Field(
        default_factory=lambda: 50,
        description="With shadow=drop: how dark it is, in percent. Left out: 50.",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.output == "labels" and (
            surplus := next((name for name in WITHOUT_LABELS if name in self.model_fields_set), "")
        ):
            raise InvalidParameter(
                f"{surplus} has no effect on output=labels; leave it out",
                parameter=surplus,
                limit="cutout, mask, composite",
            )
        composite = self.output == "composite"
        self._check_needs("bg_color", "output=composite", composite, limit="composite")
        self._check_needs("bg_blur", "output=composite", composite)
        self._check_needs("crop_margin", "crop=true", self.crop)
        self._check_needs("shadow_opacity", "shadow=drop", self.shadow == "drop")
        if self.format not in FORMATS[self.output]:
            formats = ", ".join(FORMATS[self.output])
            raise InvalidParameter(
                f"format must be one of {formats} for output={self.output}",
                parameter="format",
                limit=formats,
            )
        if self.format == "jpg" and self.bg_color[3] < 255:
            raise InvalidParameter(
                "bg_color is translucent, which format=jpg cannot hold; use format=png or "
                "format=webp",
                parameter="bg_color",
                limit="png, webp",
            )
        if self.shadow == "drop" and self.output == "mask":
            raise InvalidParameter(
                "shadow=drop needs output=cutout or output=composite",
                parameter="shadow",
                limit="cutout, composite",
            )
        return self

    def _check_needs(self, name: str, needed: str, is_met: bool, *, limit: str = "") -> None:
        """Raise InvalidParameter if the option was passed without what it needs."""
        if name in self.model_fields_set and not is_met:
            message = f"{name} needs {needed}"
            raise InvalidParameter(message, parameter=name, limit=limit or needed)


OPTIONS = schemas(SegmentOptions)
"""The JSON schemas of the options by name."""


class SegmentRequest(SegmentOptions):
    """One picture and the options for its result.

    If `labels` is set, `output` must be `mask`; the result then has the mask's pixels in addition
    to the encoded file. From a semantic segmentation model, they are the labels, and the file has a
    palette.
    """

    body: bytes
    background: bytes | None = None
    labels: bool = False

    @model_validator(mode="after")
    def _check_background(self) -> Self:
        if self.background is None:
            self._check_needs("bg_fit", "bg_image", False)
        elif self.output != "composite":
            raise InvalidParameter(
                "bg_image needs output=composite", parameter="bg_image", limit="composite"
            )
        elif self.bg_blur is not None:
            raise InvalidParameter(
                "bg_blur blurs the picture's own background; leave out bg_image",
                parameter="bg_blur",
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ForegroundBox:
    """The foreground's box in the upright, uncropped picture, in pixels of the requested `size`.

    All numbers are 0 if there is no foreground.
    """

    top: int
    left: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """The encoded result, `image`, with its size and facts about the foreground.

    `box` is the foreground's place in the uncropped picture. `labels` are the pixels of a mask, or
    the label of each pixel if `output` is `labels`, row by row; None if they were not requested.
    `confidence` is the mean of |2p - 1| over the mask's values p: 1 if the network is sure
    everywhere.
    """

    image: bytes
    format: str
    output: str
    width: int
    height: int
    box: ForegroundBox
    confidence: float
    labels: bytes | None = None


class SegmentSettings(BaseModel):
    """Settings of the task; each variable is PADDLEPOOL_ and the field's name in capitals."""

    segment_max_bytes: Bytes = Field(
        30 * MIB, description="Maximum request body of /segment, in bytes."
    )


def tensors(settings: Settings) -> TaskTensors:
    return TaskTensors(
        inputs=(TensorSpec("image", STRINGS, (1,)), TensorSpec("bg_image", STRINGS, (1,))),
        outputs=(
            TensorSpec("image", STRINGS, (1,)),
            TensorSpec("size", "int32", (2,)),
            TensorSpec("foreground_box", "int32", (4,)),
            TensorSpec("confidence", "float32", (1,)),
        ),
        parameters=tuple(OPTIONS),
        read=_request,
        write=_write,
        max_bytes=settings.of(SegmentSettings).segment_max_bytes,
        optional=frozenset({"bg_image"}),
        opaque=frozenset({"image"}),
    )


def _request(inputs: Tensors, parameters: Mapping[str, Any]) -> SegmentRequest:
    files: dict[str, bytes] = {name: array.item(0) for name, array in inputs.items()}
    for name, file in files.items():
        if not file:
            raise FileMissing(f"{name}: the picture has 0 bytes", received=0)
    return SegmentRequest(body=files["image"], background=files.get("bg_image"), **parameters)


def _write(result: SegmentResult) -> Tensors:
    box = result.box
    return {
        "image": strings_of([result.image], (1,)),
        "size": np.array([result.width, result.height], np.int32),
        "foreground_box": np.array([box.top, box.left, box.width, box.height], np.int32),
        "confidence": np.array([result.confidence], np.float32),
    }

"""Background, framing and shadow of a request: options checked, with defaults applied.

Names and values are those of remove.bg (`crop_margin`, `scale`, `position`), so requests of its
clients work unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.contracts.errors import InvalidParameter
from app.tasks.segment.options import (
    BLUR_PERCENT,
    DEFAULT_SHADOW_OPACITY,
    MARGIN_PERCENT,
    MARGIN_PIXELS,
    SCALE_PERCENT,
    SHADOW_OPACITY,
    read_word,
)

_NUMBER = re.compile(r"\d{1,4}(?:\.\d{1,3})?", re.ASCII)
_ORIGINAL = "original"

Length = tuple[float, str]
"""A number and its unit, `px` or `%` of the subject's own side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The place of the foreground and its background. The defaults leave the result unchanged.

    `bg_blur` is the blur's standard deviation and `scale` the subject's share of the canvas, in
    percent; `margins` are top, right, bottom, left; `position` is how much of the free room lies
    left of the subject and above it, in percent. None: not requested, or as in the picture.
    """

    bg_fit: str = "cover"
    bg_blur: float | None = None
    margins: tuple[Length, Length, Length, Length] = ((0.0, "px"),) * 4
    scale: float | None = None
    position: tuple[float, float] | None = None
    shadow: float | None = None


PLAIN = Scene()


def read_scene(
    options: Mapping[str, str], *, output: str, crop: bool, has_background: bool
) -> Scene:
    """Check the options by name. Raises InvalidParameter with the option, its limit and why."""
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
    return Scene(
        bg_fit=read_word(options, "bg_fit"),
        bg_blur=None if blur is None else _percent("bg_blur", blur, *BLUR_PERCENT),
        margins=_margins(options.get("crop_margin", "0px")),
        scale=scale,
        position=_position(options.get("position"), scaled=scale is not None),
        shadow=_opacity(options.get("shadow_opacity")) if shadow == "drop" else None,
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
    """The number before the unit; None for anything else."""
    number = text.strip().removesuffix(unit)
    if number == text.strip() or not _NUMBER.fullmatch(number):
        return None
    return float(number)


def _parts(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _margins(text: str) -> tuple[Length, Length, Length, Length]:
    """Read margins as in CSS.

    One value is for all sides; two are for top and bottom, and for left and right; four go
    clockwise from the top.
    """
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


def _position(text: str | None, *, scaled: bool) -> tuple[float, float] | None:
    """Read the position; None leaves the subject in place. By default, a scaled one is centred."""
    if text is None:
        text = "center" if scaled else _ORIGINAL
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


def _opacity(text: str | None) -> float:
    if text is None:
        return DEFAULT_SHADOW_OPACITY / 100
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

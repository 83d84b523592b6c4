"""The options of `/segment`, declared once, for parsing, OpenAPI and the demo page.

`SegmentOptions` of the Python client repeats the options; a test compares the two. An option that
is valid only together with another one has no `default` here: pages generated from the OpenAPI
document would send the default without the other option.
"""

import re
from collections.abc import Mapping
from typing import Any

from PIL.ImageColor import colormap, getrgb  # only the names of CSS colours; loads no decoder

from app.contracts.errors import InvalidParameter

SIZE_PIXELS = {"preview": 250_000, "medium": 1_500_000, "hd": 4_000_000}
"""Maximum pixels of the result, by `size`; `full` is not limited here."""
DEFAULT_REFINE = {"cutout": "guided", "mask": "none", "composite": "guided"}
"""Default of `refine`, by `output`."""
MEDIA_TYPES = {"png": "image/png", "webp": "image/webp", "jpg": "image/jpeg"}
BLUR_PERCENT = (0.5, 10.0)
SCALE_PERCENT = (10.0, 100.0)
MARGIN_PIXELS = 500
MARGIN_PERCENT = 50
SHADOW_OPACITY = (1, 100)
DEFAULT_SHADOW_OPACITY = 50


def _words(*accepted: str, default: str | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "enum": list(accepted)}
    return schema if default is None else schema | {"default": default}


TEXT = {"type": "string"}

OPTIONS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "output": (
        _words("cutout", "mask", "composite", default="cutout"),
        "What to make of the picture.",
    ),
    "format": (
        _words(*MEDIA_TYPES),
        "Encoding; jpg for composite only. Left out: what Accept prefers, else png.",
    ),
    "size": (
        _words("full", *SIZE_PIXELS, default="full"),
        "The result's: `preview` is at most 0.25 MP, `medium` 1.5, `hd` 4.",
    ),
    "bg_color": (
        TEXT,
        "For composite: #rgb, #rgba, #rrggbb, #rrggbbaa or a CSS name; white if left out.",
    ),
    "crop": ({"type": "boolean", "default": False}, "Crop to the foreground box."),
    "refine": (
        _words("none", "guided", "matting"),
        "`guided` makes the mask follow the picture's edges; `matting` also looks "
        "for hair and fur beside them and takes up to a second more. Left out: "
        + ", ".join(f"{refine} for {output}" for output, refine in DEFAULT_REFINE.items())
        + ".",
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
        f"each up to {MARGIN_PIXELS}px or {MARGIN_PERCENT}% of the subject's side, as `10%`. "
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
        {"type": "integer", "minimum": SHADOW_OPACITY[0], "maximum": SHADOW_OPACITY[1]},
        f"With shadow=drop: how dark it is, in percent. Left out: {DEFAULT_SHADOW_OPACITY}.",
    ),
}
"""The options by name: JSON schema and description."""

FILES = {
    "file": ("image_file", "The picture."),
    "bg_image": ("bg_image_file", "For composite: a second picture, the background."),
}
"""File fields of the form: an alternative name for each, and its description."""


def read_word(
    options: Mapping[str, str],
    name: str,
    *,
    default: str | None = None,
    accepted: tuple[str, ...] = (),
    when: str = "",
) -> str:
    """Read an option whose value is one of several words. Raises InvalidParameter.

    A missing option is `default`, else the default of OPTIONS, else its first word. `accepted`
    restricts the words for this request.
    """
    schema = OPTIONS[name][0]
    words = accepted or tuple(schema["enum"])
    value = options.get(name, default or schema.get("default", words[0]))
    if value not in words:
        listed = ", ".join(words)
        raise InvalidParameter(f"{name} must be one of {listed}{when and ' ' + when}", limit=listed)
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

"""The options of `/segment`, declared once, for parsing, OpenAPI and the demo page.

`SegmentOptions` of the Python client repeats them; a test compares the two. An option that needs
another one has no `default` here: pages made from the document would send it alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.contracts.errors import InvalidParameter

SIZE_PIXELS = {"preview": 250_000, "medium": 1_500_000, "hd": 4_000_000}
"""Most pixels of the result, by `size`; `full` has no such limit."""
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
        "How `bg_image` fills the canvas: `cover` cuts what is over, `contain` shows it whole "
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
"""Schema and description by name."""

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
    """Read an option, by default `default`, the table's default or the first word. `accepted`
    narrows the table for this request. Raises InvalidParameter."""
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

# The named colours of CSS Color Module Level 4.
_NAMES = """
aliceblue f0f8ff, antiquewhite faebd7, aqua 00ffff, aquamarine 7fffd4, azure f0ffff,
beige f5f5dc, bisque ffe4c4, black 000000, blanchedalmond ffebcd, blue 0000ff, blueviolet 8a2be2,
brown a52a2a, burlywood deb887, cadetblue 5f9ea0, chartreuse 7fff00, chocolate d2691e,
coral ff7f50, cornflowerblue 6495ed, cornsilk fff8dc, crimson dc143c, cyan 00ffff,
darkblue 00008b, darkcyan 008b8b, darkgoldenrod b8860b, darkgray a9a9a9, darkgreen 006400,
darkgrey a9a9a9, darkkhaki bdb76b, darkmagenta 8b008b, darkolivegreen 556b2f, darkorange ff8c00,
darkorchid 9932cc, darkred 8b0000, darksalmon e9967a, darkseagreen 8fbc8f, darkslateblue 483d8b,
darkslategray 2f4f4f, darkslategrey 2f4f4f, darkturquoise 00ced1, darkviolet 9400d3,
deeppink ff1493, deepskyblue 00bfff, dimgray 696969, dimgrey 696969, dodgerblue 1e90ff,
firebrick b22222, floralwhite fffaf0, forestgreen 228b22, fuchsia ff00ff, gainsboro dcdcdc,
ghostwhite f8f8ff, gold ffd700, goldenrod daa520, gray 808080, green 008000, greenyellow adff2f,
grey 808080, honeydew f0fff0, hotpink ff69b4, indianred cd5c5c, indigo 4b0082, ivory fffff0,
khaki f0e68c, lavender e6e6fa, lavenderblush fff0f5, lawngreen 7cfc00, lemonchiffon fffacd,
lightblue add8e6, lightcoral f08080, lightcyan e0ffff, lightgoldenrodyellow fafad2,
lightgray d3d3d3, lightgreen 90ee90, lightgrey d3d3d3, lightpink ffb6c1, lightsalmon ffa07a,
lightseagreen 20b2aa, lightskyblue 87cefa, lightslategray 778899, lightslategrey 778899,
lightsteelblue b0c4de, lightyellow ffffe0, lime 00ff00, limegreen 32cd32, linen faf0e6,
magenta ff00ff, maroon 800000, mediumaquamarine 66cdaa, mediumblue 0000cd, mediumorchid ba55d3,
mediumpurple 9370db, mediumseagreen 3cb371, mediumslateblue 7b68ee, mediumspringgreen 00fa9a,
mediumturquoise 48d1cc, mediumvioletred c71585, midnightblue 191970, mintcream f5fffa,
mistyrose ffe4e1, moccasin ffe4b5, navajowhite ffdead, navy 000080, oldlace fdf5e6, olive 808000,
olivedrab 6b8e23, orange ffa500, orangered ff4500, orchid da70d6, palegoldenrod eee8aa,
palegreen 98fb98, paleturquoise afeeee, palevioletred db7093, papayawhip ffefd5,
peachpuff ffdab9, peru cd853f, pink ffc0cb, plum dda0dd, powderblue b0e0e6, purple 800080,
rebeccapurple 663399, red ff0000, rosybrown bc8f8f, royalblue 4169e1, saddlebrown 8b4513,
salmon fa8072, sandybrown f4a460, seagreen 2e8b57, seashell fff5ee, sienna a0522d, silver c0c0c0,
skyblue 87ceeb, slateblue 6a5acd, slategray 708090, slategrey 708090, snow fffafa,
springgreen 00ff7f, steelblue 4682b4, tan d2b48c, teal 008080, thistle d8bfd8, tomato ff6347,
turquoise 40e0d0, violet ee82ee, wheat f5deb3, white ffffff, whitesmoke f5f5f5, yellow ffff00,
yellowgreen 9acd32
"""
_BY_NAME = dict(pair.split() for pair in _NAMES.split(","))


def read_colour(text: str) -> Colour | None:
    """Read #rgb, #rgba, #rrggbb, #rrggbbaa, a CSS name or `transparent`."""
    name = text.strip().lower()
    if name == "transparent":
        return (0, 0, 0, 0)
    digits = name[1:] if _HEX.fullmatch(name) else _BY_NAME.get(name)
    if digits is None:
        return None
    if len(digits) <= 4:
        digits = "".join(2 * digit for digit in digits)
    red, green, blue, alpha = bytes.fromhex(digits.ljust(8, "f"))
    return (red, green, blue, alpha)

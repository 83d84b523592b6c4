"""The scene's parameters as the document of the endpoint shows them.

What needs another parameter has no `default` and no `example` here: pages that are made from the
document send both, also without that other parameter, and the request is refused.
"""

from __future__ import annotations

from typing import Any

from app.pipelines.segment.scene.options import (
    BLUR_PERCENT,
    DEFAULT_SHADOW_OPACITY,
    FITS,
    MARGIN_PERCENT,
    MARGIN_PIXELS,
    SCALE_PERCENT,
    SHADOW_OPACITY,
    SHADOWS,
)

SCENE_SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "bg_fit": (
        {"type": "string", "enum": list(FITS)},
        "How `bg_image` fills the canvas: `cover` cuts what is over, `contain` shows it whole "
        f"on `bg_color`. Left out: {FITS[0]}.",
    ),
    "bg_blur": (
        {"type": "string"},
        "For composite: the picture's own background, blurred; the blur's standard deviation "
        f"in percent of the longer side, {BLUR_PERCENT[0]:g}% to {BLUR_PERCENT[1]:g}%, as `2%`.",
    ),
    "crop_margin": (
        {"type": "string"},
        "With crop: room around the subject. One, two or four values (top, right, bottom, left), "
        f"each up to {MARGIN_PIXELS}px or {MARGIN_PERCENT}% of the subject's side, as `10%`. "
        "Left out: 0px.",
    ),
    "scale": (
        {"type": "string", "default": "original"},
        "How much of the canvas the subject fills: `original`, or "
        f"{SCALE_PERCENT[0]:g}% to {SCALE_PERCENT[1]:g}%.",
    ),
    "position": (
        {"type": "string"},
        "Where the subject stands: `original`, `center`, or how much of the free room is left of "
        "it and above it, 0% to 100%, as `50% 100%`. Left out: center with `scale`, else original.",
    ),
    "shadow": (
        {"type": "string", "enum": list(SHADOWS), "default": SHADOWS[0]},
        "`drop`: a soft shadow behind the subject. Not for mask.",
    ),
    "shadow_opacity": (
        {
            "type": "integer",
            "minimum": SHADOW_OPACITY[0],
            "maximum": SHADOW_OPACITY[1],
        },
        f"With shadow=drop: how dark it is, in percent. Left out: {DEFAULT_SHADOW_OPACITY}.",
    ),
}

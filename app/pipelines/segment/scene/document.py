"""The scene's parameters as the document of the endpoint shows them."""

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
        {"enum": list(FITS), "default": FITS[0]},
        "How `bg_image` fills the canvas: `cover` cuts what is over, `contain` shows it whole "
        "on `bg_color`.",
    ),
    "bg_blur": (
        {"type": "string", "example": "2%"},
        "For composite: the picture's own background, blurred; the blur's standard deviation "
        f"in percent of the longer side, {BLUR_PERCENT[0]:g}% to {BLUR_PERCENT[1]:g}%.",
    ),
    "crop_margin": (
        {"type": "string", "default": "0px", "example": "10%"},
        "With crop: room around the subject. One, two or four values (top, right, bottom, left), "
        f"each up to {MARGIN_PIXELS}px, or up to {MARGIN_PERCENT}% of the subject's side.",
    ),
    "scale": (
        {"type": "string", "default": "original", "example": "80%"},
        "How much of the canvas the subject fills: `original`, or "
        f"{SCALE_PERCENT[0]:g}% to {SCALE_PERCENT[1]:g}%.",
    ),
    "position": (
        {"type": "string", "example": "50% 100%"},
        "Where the subject stands: `original`, `center`, or how much of the free room is left of "
        "it and above it, 0% to 100%. Left out: center with `scale`, else original.",
    ),
    "shadow": (
        {"enum": list(SHADOWS), "default": SHADOWS[0]},
        "`drop`: a soft shadow behind the subject. Not for mask.",
    ),
    "shadow_opacity": (
        {
            "type": "integer",
            "minimum": SHADOW_OPACITY[0],
            "maximum": SHADOW_OPACITY[1],
            "default": DEFAULT_SHADOW_OPACITY,
        },
        "How dark the shadow is, in percent.",
    ),
}

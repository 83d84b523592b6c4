"""Puts a foreground into its scene: canvas, place, shadow and background, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.contracts.errors import OutputTooLarge
from app.tasks.codecs.encode import check_output
from app.tasks.codecs.limits import PictureLimits
from app.tasks.codecs.picture import Pixels
from app.tasks.segment import matte
from app.tasks.segment.backdrop import Bands, blurred, drop_shadow, fitted, flat, stacked
from app.tasks.segment.framing import (
    Area,
    canvas_of,
    moved,
    moved_colours,
    on_canvas,
    place_of,
)

TRANSPARENT = (0, 0, 0, 0)


def compose(
    colours: Pixels,
    alpha: Pixels,
    subject: Area,
    meta: Mapping[str, Any],
    *,
    picture: Pixels,
    background: Pixels | None,
) -> Pixels:
    """Compose the pixels of the result.

    `colours` are the foreground's, `picture` is the picture it was cut from, and `background` is
    the second picture, if any. meta: output, format, bg_color, crop, limits and the fields of
    Scene. If the picture has no foreground, the result is not cropped and nothing is moved or casts
    a shadow. Raises OutputTooLarge if margins make the canvas larger than a picture may be.
    """
    scene = meta["scene"]
    canvas = Area(0, 0, *alpha.shape)
    place, is_moved = None, False
    if subject.width:
        if meta["crop"]:
            canvas = canvas_of(subject, scene["margins"])
            _check(canvas, meta)
        place = place_of(subject, canvas, scale=scene["scale"], position=scene["position"])
        is_moved = scene["scale"] is not None or scene["position"] is not None
    if place is not None and is_moved:
        cover = moved(alpha, subject=subject, canvas=canvas, place=place)
    else:
        cover = on_canvas(alpha, canvas)
    if meta["output"] == "mask":
        return cover
    if place is not None and is_moved:
        front = moved_colours(colours, alpha, subject=subject, canvas=canvas, place=place)
    else:
        front = on_canvas(colours, canvas)
    shade = None
    if scene["shadow"] is not None and place is not None:
        shade = drop_shadow(cover, place, opacity=scene["shadow"], width=canvas.width)
    if meta["output"] == "cutout" and shade is None:
        return matte.cutout(front, cover)
    ground = _ground(meta, picture, alpha, canvas, background)
    return stacked(front, cover, ground=ground, shade=shade)


def _ground(
    meta: Mapping[str, Any],
    picture: Pixels,
    alpha: Pixels,
    canvas: Area,
    background: Pixels | None,
) -> Bands:
    """The background: a second picture, the blurred picture, or one colour."""
    scene = meta["scene"]
    if background is not None:
        behind = fitted(
            background,
            height=canvas.height,
            width=canvas.width,
            fit=scene["bg_fit"],
            colour=meta["bg_color"],
        )
        return behind.__getitem__
    if scene["bg_blur"] is not None:
        whole = matte.over_white(picture)
        return blurred(whole, alpha, percent=scene["bg_blur"], canvas=canvas)
    paint = TRANSPARENT if meta["output"] == "cutout" else meta["bg_color"]
    return flat(paint, canvas.width)


def _check(canvas: Area, meta: Mapping[str, Any]) -> None:
    limits = PictureLimits(**meta["limits"])
    pixels, longer = canvas.height * canvas.width, max(canvas.height, canvas.width)
    if pixels > limits.pixels or longer > limits.side:
        raise OutputTooLarge(
            f"the subject with its crop_margin is {canvas.width} x {canvas.height} = {pixels:,} "
            f"pixels; the limit is {limits.pixels:,} pixels and {limits.side:,} a side",
            limit=limits.pixels if pixels > limits.pixels else limits.side,
            received=pixels if pixels > limits.pixels else longer,
        )
    grey = meta["output"] == "mask"
    check_output(canvas.width, canvas.height, format=meta["format"], grey=grey, limits=limits)

"""The calls that `/ocr` makes into codec processes; the picture stays in memory between them.

The functions from open_page() to warm_up() are Handlers (`paddlepool.engine.process.worker`). All
but warm_up() return the seconds that each stage took. `descriptors[0]` is the picture's memory; the
picture in it is RGB. The keys of `meta` follow "meta:".
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.decode import decode, pages_of
from paddlepool.tasks.codecs.encode import check_output, encode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import Floats, Pixels, opaque, read_pixels, write_pixels
from paddlepool.tasks.ocr.crops import crop_of, line_tensors
from paddlepool.tasks.transforms.boxes import boxes_from_map, reading_order
from paddlepool.tasks.transforms.preprocess import limited_sides
from paddlepool.tasks.transforms.stages import prepare

Result = tuple[Mapping[str, Any], Tensors]

SAMPLE_SIDE = 512
"""The brightness of a transparent picture is measured at evenly spaced points, fewer than twice
this number along its shorter side."""
DETAIL = 2
"""Least ratio of the sides of a reduced page to those of the detector's input. Small lines need
more pixels to be read than to be found."""
RED = (220, 40, 40)


def open_page(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Decode `body` into the picture's memory, and make the `input` of the first model from it.

    The first model is the detector, or the one that finds the page's orientation. Transparent parts
    become contrasting_ground(). The sides of a JPEG are divided by reduction() unless `whole`. The
    reply has the picture's `shape` in its memory, and the `size` (height, width) of the page. If
    `place` is 0, it has the result of pages_of() as `places`, else none. Raises InputError for a
    bad picture, or for one that is too large for a requested PNG.

    meta: limits; operations of the first model; most_side and least_side, as for within();
    detector (its operations and these sides); whole; format of the result; place, the `page` for
    decode(); and most_pages, the maximum number of places.
    """
    started = time.perf_counter()
    limits = PictureLimits(**meta["limits"])
    body = arrays["body"].tobytes()
    size: list[int] = []

    def reduced(height: int, width: int) -> int:
        size[:] = height, width
        return 1 if meta["whole"] else reduction(height, width, **meta["detector"])

    picture = decode(body, limits, meta["place"], reduction=reduced)
    places = pages_of(body, limits, meta["most_pages"]) if meta["place"] == 0 else []
    picture = opaque(picture, contrasting_ground(picture))
    height, width = picture.shape[:2]
    if meta["format"] == "png":  # reject now, before a model runs
        check_output(width, height, format="png", grey=False, limits=limits)
    decoded = time.perf_counter()
    tensor = _tensor(picture, meta)
    write_pixels(descriptors[0], picture)
    seconds = {"decode": decoded - started, "preprocess": time.perf_counter() - decoded}
    arrays = {"input": tensor, "places": np.array(places, np.int32)}
    shape = [height, width, 3]
    return {"shape": shape, "size": size or shape[:2], "seconds": seconds}, arrays


def turn_page(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Turn the picture in its memory, and make the detector's `input` from it.

    The reply has the new shape. meta: shape of the picture, turns (quarter turns anticlockwise),
    operations of the detector, most_side and least_side, as for within().
    """
    del arrays
    started = time.perf_counter()
    picture = np.ascontiguousarray(np.rot90(_picture(meta, descriptors), meta["turns"]))
    write_pixels(descriptors[0], picture)
    tensor = _tensor(picture, meta)
    seconds = {"preprocess": time.perf_counter() - started}
    return {"shape": list(picture.shape), "seconds": seconds}, {"input": tensor}


def find_lines(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Find the lines in the detector's `map` (1, 1, h, w); return `boxes` (n, 4, 2) and `widths`.

    The boxes are in reading order; `widths` has the width of the recogniser's input for each. meta:
    size of the page, boxes (arguments of boxes_from_map()) and line (height and minimum width of
    that input).
    """
    del descriptors
    started = time.perf_counter()
    height, width = meta["size"]
    probabilities = np.asarray(arrays["map"], np.float32)[0, 0]
    boxes, _scores = boxes_from_map(probabilities, height=height, width=width, **meta["boxes"])
    boxes = boxes[reading_order(boxes)]
    widths = [crop_of(box).input_width(*meta["line"]) for box in boxes]
    seconds = {"postprocess": time.perf_counter() - started}
    return {"seconds": seconds}, {"boxes": boxes, "widths": np.array(widths, np.int32)}


def cut_lines(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Cut the lines in `boxes` out of the picture; return line_tensors(), named by their widths.

    meta: shape of the picture, size of the page, operations of the recogniser, widths (one for each
    box), tall and margin.
    """
    started = time.perf_counter()
    picture = _picture(meta, descriptors)
    height, width = meta["size"]
    boxes = np.asarray(arrays["boxes"], np.int32)
    tensors = line_tensors(
        picture,
        boxes,
        meta["widths"],
        meta["operations"],
        tall=meta["tall"],
        margin=meta["margin"],
        scale=(picture.shape[1] / width, picture.shape[0] / height),
    )
    seconds = {"postprocess": time.perf_counter() - started}
    return {"seconds": seconds}, {str(width): tensor for width, tensor in tensors.items()}


def draw_lines(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Draw `boxes` on a copy of the picture, and return the copy as a PNG, `image`.

    meta: shape of the picture.
    """
    started = time.perf_counter()
    picture = np.array(_picture(meta, descriptors))
    thickness = max(1, round(max(picture.shape) / 800))
    cv2.polylines(picture, list(arrays["boxes"]), isClosed=True, color=RED, thickness=thickness)
    file = encode(picture, format="png")
    return {"seconds": {"encode": time.perf_counter() - started}}, {"image": file}


def warm_up(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Find and cut a line in a small picture, so that no request pays for a first call."""
    del meta, arrays, descriptors
    probabilities = np.zeros((64, 96), np.float32)
    probabilities[20:40, 10:80] = 1
    boxes, _scores = boxes_from_map(
        probabilities,
        height=64,
        width=96,
        thresh=0.3,
        box_thresh=0.6,
        unclip_ratio=1.5,
        max_candidates=10,
    )
    picture = np.zeros((64, 96, 3), np.uint8)
    widths = [crop_of(box).input_width(48, 320) for box in boxes[reading_order(boxes)]]
    line_tensors(picture, boxes, widths, [("RecResizeImg", {"image_shape": (3, 48, 320)})], tall=48)
    return {}, {}


def contrasting_ground(picture: Pixels) -> int:
    """Return the grey level to put behind a picture: 0 if it is transparent and bright, else 255.

    On a ground of its own colour, text would vanish.
    """
    if picture.shape[2] == 3:
        return 255
    step = max(1, min(picture.shape[:2]) // SAMPLE_SIDE)
    sample = picture[::step, ::step].astype(np.float32)
    alpha = sample[..., 3]
    total = float(alpha.sum())
    brightness = float((sample[..., :3].mean(axis=2) * alpha).sum()) / total if total else 0.0
    return 0 if brightness > 127 else 255


def _tensor(picture: Pixels, meta: Mapping[str, Any]) -> Floats:
    height, width = picture.shape[:2]
    sides = (meta["most_side"], meta["least_side"])
    return prepare(picture, within(height, width, meta["operations"], *sides))


def reduction(
    height: int,
    width: int,
    operations: Sequence[Sequence[Any]],
    most_side: int | None,
    least_side: int = 0,
) -> int:
    """Return by how much to divide the sides of a page before the detector's `operations`: 1 to 8.

    The result is the largest power of 2 that leaves DETAIL times the sides of the detector's input.
    """
    for _, parameters in within(height, width, operations, most_side, least_side):
        if (limit := parameters.get("limit_side_len")) and not parameters.get("image_shape"):
            tall, wide = limited_sides(height, width, limit, parameters["limit_type"])
            times = min(height / tall, width / wide) / DETAIL
            return next((parts for parts in (8, 4, 2) if parts <= times), 1)
    return 1


def within(
    height: int,
    width: int,
    operations: Sequence[Sequence[Any]],
    most_side: int | None,
    least_side: int = 0,
) -> Sequence[Sequence[Any]]:
    """Return the operations, changed so that the sides of a resized page are within these limits.

    No side exceeds `most_side`; a side is rounded to a multiple of 32 after that, and may then
    exceed it. Within that, the shorter side is at least `least_side`. None means no limit. An
    operation with a fixed `image_shape` is not changed.
    """
    changed = []
    for name, parameters in operations:
        limit = parameters.get("limit_side_len")
        if most_side is not None and limit is not None and not parameters.get("image_shape"):
            long, short = max(height, width), min(height, width)
            kind = parameters["limit_type"]
            side = {
                "min": long * max(1.0, limit / short),
                "max": min(long, limit),
                "resize_long": limit,
            }[kind]
            if side > most_side or side * short < least_side * long:
                # A picture of one line would be too low for the detector.
                side = min(most_side, max(side, math.ceil(long * least_side / short)))
                parameters = {**parameters, "limit_type": "resize_long", "limit_side_len": side}
        changed.append((name, parameters))
    return changed


def _picture(meta: Mapping[str, Any], descriptors: Sequence[int]) -> Pixels:
    height, width, channels = meta["shape"]
    return read_pixels(descriptors[0], (height, width, channels))

"""The calls that `/segment` makes into codec processes; the pictures stay in memory between them.

Each public function is a Handler (`paddlepool.engine.process.worker`). Those that serve a
request return the seconds that each stage took. The keys of `meta` follow "meta:".
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import ModelOutputInvalid, OutputTooLarge, ResolutionTooHigh
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.encode import LARGE_PIXELS, check_output, encode, indexed_png
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import (
    Floats,
    Pixels,
    opaque,
    read_pixels,
    reserve,
    write_pixels,
)
from paddlepool.tasks.segment import matte
from paddlepool.tasks.segment.foreground import edge_colours, foreground_colours, small_picture
from paddlepool.tasks.segment.masks import foreground_of
from paddlepool.tasks.segment.refine import guided_alpha, matted_alpha
from paddlepool.tasks.transforms.labels import pixel_labels
from paddlepool.tasks.transforms.masks import label_map
from paddlepool.tasks.transforms.preprocess import MOST_PIXELS
from paddlepool.tasks.transforms.stages import prepare

Result = tuple[Mapping[str, Any], Tensors]


def _palette() -> bytes:
    """Return PaddleX's colours of the labels 0 to 255: red, green and blue, 768 bytes in all.

    The bits of label + 1, lowest first, become those of red, green and blue in turn, highest first.
    """
    colours = bytearray()
    for number in range(1, 257):
        bits = [(number >> place) & 1 for place in range(9)]
        colours += bytes(
            sum(bit << (7 - depth) for depth, bit in enumerate(bits[channel::3]))
            for channel in range(3)
        )
    return bytes(colours)


PALETTE = _palette()
BESIDE_BYTES = 150_000_000
"""Two steps run at once only for pictures of at most this size, because both need memory."""
MOST_COMPRESSED = 1_000
"""Deflate makes a file at most about this many times smaller than its pixels. If a file is smaller
still, data are probably missing."""


def open_picture(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Decode `body` into the picture's memory, and make the model's `input` from it.

    The memory gets the picture, shrunk to at most `most_pixels`, unless _needs_pixels() is false.
    The reply has the `shape` of this picture, the number of `pixels` of the whole one, and seconds.
    meta: the options, limits, network ({size, mean, std} of a matting model, or {operations} of a
    semantic segmentation model), and most_pixels, the maximum of the result, or None. Raises
    InputError for a bad picture, and for one that is too large for the model, the format or labels.
    """
    started = time.perf_counter()
    limits = PictureLimits(**meta["limits"])
    with ThreadPoolExecutor(1) as second:

        def reserve_memory(pixels: int) -> None:
            size = 3 * min(pixels, meta["most_pixels"] or pixels)
            complete = 3 * pixels <= MOST_COMPRESSED * arrays["body"].size
            if pixels >= LARGE_PIXELS and complete and _needs_pixels(meta, 3):
                with suppress(RuntimeError):  # the system lacks threads
                    second.submit(reserve, descriptors[0], size)

        # The network sees the whole picture, and its transparency as white.
        whole = decode(arrays["body"].tobytes(), limits, on_size=reserve_memory)
    decoded = time.perf_counter()
    pixels = _shrink(whole, meta["most_pixels"] or math.inf)
    height, width, channels = pixels.shape
    # Reject now, before the network runs.
    if meta["labels"] and height * width > limits.png_pixels:
        raise OutputTooLarge(
            f"labels of {width} x {height} = {height * width:,} pixels are over the limit of "
            f"{limits.png_pixels:,}",
            limit=limits.png_pixels,
            received=height * width,
        )
    grey = meta["output"] in ("mask", "labels")
    check_output(width, height, format=meta["format"], grey=grey, limits=limits)
    if operations := meta["network"].get("operations"):
        tensor = prepare(whole, operations)
        # A model that takes the picture's own size resizes nothing, so no operation checks this.
        if (size := tensor[0, 0].size) > MOST_PIXELS:
            raise ResolutionTooHigh(
                f"the model takes pictures of up to {MOST_PIXELS:,} pixels, received {size:,}",
                limit=MOST_PIXELS,
                received=size,
            )
    else:
        tensor = matte.network_input(opaque(whole), **meta["network"])
    if _needs_pixels(meta, channels):
        write_pixels(descriptors[0], pixels)
    done = time.perf_counter()
    return {
        "shape": [height, width, channels],
        "pixels": whole.shape[0] * whole.shape[1],
        "seconds": {"decode": decoded - started, "preprocess": done - decoded},
    }, {"input": tensor}


def open_background(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Decode the background picture `body` into its own memory, shrunk as matte.reduced() does.

    The reply is like that of open_picture(), without arrays. meta: limits, and the shape of the
    first picture. Raises InputError for a bad picture.
    """
    started = time.perf_counter()
    picture = decode(arrays["body"].tobytes(), PictureLimits(**meta["limits"]))
    height, width = meta["shape"][:2]
    pixels = picture.shape[0] * picture.shape[1]
    picture = matte.reduced(picture, height=height, width=width)
    write_pixels(descriptors[0], picture)
    seconds = {"decode": time.perf_counter() - started}
    return {"shape": list(picture.shape), "pixels": pixels, "seconds": seconds}, {}


def render(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Turn the model's output `mask`, which is finite, into the encoded result.

    A matting model returns a mask (1, 1, h, w). Any other model returns the labels or scores that
    label_map() reads. The reply has the file as `image`, its size, the foreground's `box` and the
    `confidence`. If the option `labels` is set, it also has the pixels of the result as `labels`.

    meta: the options and limits, the `shape` of the picture, that of the `background` or None, and
    `foreground`: None for a matting model, else the arguments of foreground_of(). Raises
    OutputTooLarge as _compose() and encode() do, and ModelOutputInvalid for wrong labels.
    """
    started = time.perf_counter()
    ready: Iterator[int] = iter(())
    if meta["foreground"] is None:
        mask = np.asarray(arrays["mask"], np.float32)[0, 0]
    else:
        mask = foreground_of(pixel_labels(arrays["mask"][0]), **meta["foreground"])
    if meta["output"] == "labels":
        height, width, _ = meta["shape"]
        result = _labels(arrays["mask"], height, width)
        subject = matte.box_of(matte.plain_alpha(mask, width, height, nearest=True))
    else:
        background = meta["background"] and read_pixels(descriptors[1], tuple(meta["background"]))
        result, subject, ready = _compose(_pixels(meta, descriptors[0]), mask, meta, background)
    composed = time.perf_counter()

    def timed_rows() -> Iterator[int]:
        nonlocal composed
        yield from ready
        composed = time.perf_counter()

    if meta["output"] == "labels" and meta["labels"]:
        file = indexed_png(result, PALETTE)
    else:
        file = encode(result, format=meta["format"], ready=timed_rows())
    arrays = {"image": file} | ({"labels": result.reshape(-1)} if meta["labels"] else {})
    done = time.perf_counter()
    return {
        "width": result.shape[1],
        "height": result.shape[0],
        "box": asdict(subject),
        "confidence": matte.confidence(mask),
        "seconds": {"postprocess": composed - started, "encode": done - composed},
    }, arrays


def warm_up(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Run the usual steps once on a small picture, so that no request pays for a first call."""
    del meta, arrays, descriptors
    pixels = np.tile(np.arange(64, dtype=np.uint8)[:, None, None], (1, 64, 3))
    limits = PictureLimits()
    for kind in ("png", "webp", "jpg"):
        decode(encode(pixels, format=kind).tobytes(), limits)
    matte.network_input(pixels, 32, (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))
    mask = np.linspace(0.0, 1.0, 1024, dtype=np.float32).reshape(32, 32)
    alpha = matted_alpha(pixels, mask)
    matte.box_of(alpha)
    encode(matte.cutout(foreground_colours(pixels, alpha), alpha), format="png")
    ground = matte.flat(matte.WHITE, 64)
    encode(matte.stacked(pixels, matte.plain_alpha(mask, 64, 64), ground=ground), format="jpg")
    encode(alpha, format="png")
    return {}, {}


def _needs_pixels(meta: Mapping[str, Any], channels: int) -> bool:
    """Return whether the result needs the pixels of a picture with so many `channels`.

    Labels and the unrefined mask of an opaque picture do not. Leaving the pixels out saves 3 MB per
    megapixel.
    """
    if meta["output"] == "labels":
        return False
    return meta["output"] != "mask" or meta["refine"] != "none" or channels == 4


def _pixels(meta: Mapping[str, Any], descriptor: int) -> Pixels:
    height, width, channels = meta["shape"]
    if _needs_pixels(meta, channels):
        return read_pixels(descriptor, (height, width, channels))
    return np.broadcast_to(np.uint8(0), (height, width, channels))


def _shrink(pixels: Pixels, most: float) -> Pixels:
    height, width = pixels.shape[:2]
    scale = (most / (height * width)) ** 0.5
    if scale >= 1.0:
        return pixels
    return matte.resized(pixels, max(1, int(height * scale)), max(1, int(width * scale)))


def _labels(output: NDArray[Any], height: int, width: int) -> Pixels:
    """Return the label of each pixel (height, width) from the model's output.

    Raises ModelOutputInvalid for a label above 255, and as label_map() does.
    """
    labels = label_map(output, height=height, width=width)
    if labels.dtype != np.uint8:
        raise ModelOutputInvalid(
            f"the labels go up to {int(labels.max())}; the segment task answers labels up to 255"
        )
    return labels


def _alpha(pixels: Pixels, mask: Floats, meta: Mapping[str, Any]) -> Pixels:
    height, width, channels = pixels.shape
    mask = matte.normalise(mask)
    if meta["refine"] == "none":
        alpha = matte.plain_alpha(mask, width, height, nearest=meta["foreground"] is not None)
    else:
        refined = guided_alpha if meta["refine"] == "guided" else matted_alpha
        alpha = refined(opaque(pixels), mask)
    if meta["threshold"] is not None:
        alpha = np.where(alpha >= meta["threshold"] * 255.0, np.uint8(255), np.uint8(0))
    if channels == 4:
        alpha = cv2.multiply(alpha, np.ascontiguousarray(pixels[..., 3]), scale=1 / 255.0)
    return alpha


def _compose(
    pixels: Pixels, mask: Floats, meta: Mapping[str, Any], background: Pixels | None
) -> tuple[Pixels, matte.Area, Iterator[int]]:
    """Return the result's pixels, the foreground's area in the picture, and an iterator.

    The iterator finishes the pixels from top to bottom, and yields the number of finished rows.

    The options of `meta` apply. Without a foreground, nothing is cropped or moved, and no shadow is
    drawn. render() keeps no reference to `pixels`, so the picture is freed once the result is
    finished. Raises OutputTooLarge if margins make the canvas larger than a picture, or a file of
    the format, may be.
    """
    beside = pixels[..., 0].size >= LARGE_PIXELS and pixels.nbytes <= BESIDE_BYTES
    estimated = meta["output"] != "mask" and meta["colours"] != "original"
    small: Pixels | None = None
    with ThreadPoolExecutor(1) as second:  # starts a thread when something is submitted
        reduction = second.submit(small_picture, pixels) if estimated and beside else None
        alpha = _alpha(pixels, mask, meta)
    if estimated:
        small = reduction.result() if reduction else small_picture(pixels)
    subject = matte.box_of(alpha)
    part = canvas = matte.Area(0, 0, *alpha.shape)
    if subject.width and meta["crop"]:
        canvas = matte.canvas_of(subject, meta["crop_margin"])
        _check(canvas, meta)
    size, shown, place = alpha.shape, canvas, subject
    if subject.width:
        place = matte.place_of(subject, canvas, scale=meta["scale"], position=meta["position"])
        if meta["scale"] is not None or meta["position"] is not None:
            part, size = subject, (place.height, place.width)
            shown = matte.Area(-place.top, -place.left, canvas.height, canvas.width)
    own = alpha[part.slices]
    cover = matte.on_canvas(matte.resized_alpha(own, *size), shown)
    if meta["output"] == "mask":
        return cover, subject, iter(())
    whole = part is canvas and shown.slices == part.slices and size == alpha.shape
    if meta["output"] == "cutout" and meta["shadow"] != "drop" and whole:
        result = np.zeros((*alpha.shape, 4), np.uint8)
        ready = _plain_cutout(pixels, alpha, small, result)
        return result, subject, ready if beside else iter(list(ready))
    paint = (0, 0, 0, 0) if meta["output"] == "cutout" else meta["bg_color"]
    ground = matte.flat(paint, canvas.width)
    if meta["bg_blur"] is not None:
        seen = opaque(pixels)
        ground = matte.blurred(seen, alpha, percent=meta["bg_blur"], canvas=canvas)
        del seen  # the largest picture must fit the memory limit, here and below
    colours = pixels if small is None else foreground_colours(pixels, alpha, small)
    del pixels
    front = matte.on_canvas(matte.resized_colours(colours[part.slices], own, *size), shown)
    del colours
    shade = None
    if meta["shadow"] == "drop" and subject.width:
        opacity = meta["shadow_opacity"] / 100
        shade = matte.drop_shadow(cover, place, opacity=opacity, width=canvas.width)
    if meta["output"] == "cutout" and shade is None:
        return matte.cutout(front, cover), subject, iter(())
    if background is not None:
        ground = matte.fitted(
            background, canvas.height, canvas.width, fit=meta["bg_fit"], colour=paint
        )
    return matte.stacked(front, cover, ground=ground, shade=shade), subject, iter(())


def _plain_cutout(
    pixels: Pixels, alpha: Pixels, small: Pixels | None, result: Pixels
) -> Iterator[int]:
    """Write the whole picture as RGBA into a `result` of zeros; yield the number of written rows.

    With the picture's small_picture(), its colours are estimated along edges. Other results need a
    whole picture of those colours; this one only writes the edges again.
    """
    whole: Iterable[tuple[slice, list[tuple[matte.Tile, Pixels]]]] = [(slice(0, len(alpha)), [])]
    for rows, parts in whole if small is None else edge_colours(pixels, alpha, small):
        matte.write_cutout(pixels[rows], alpha[rows], result[rows])
        for place, colours in parts:
            result[place] = matte.cutout(colours, alpha[place])
        yield rows.stop


def _check(canvas: matte.Area, meta: Mapping[str, Any]) -> None:
    limits = PictureLimits(**meta["limits"])
    width, height = canvas.width, canvas.height
    for limit, size in ((limits.pixels, height * width), (limits.side, max(height, width))):
        if size > limit:
            raise OutputTooLarge(
                f"the subject with its crop_margin is {width} x {height} = {height * width:,} "
                f"pixels; the limit is {limits.pixels:,} pixels and {limits.side:,} a side",
                limit=limit,
                received=size,
            )
    check_output(width, height, format=meta["format"], grey=meta["output"] == "mask", limits=limits)

"""What a cut-out costs as PNG and WebP: what is served beside the usual libraries, in turns.

    .venv/bin/python loadtest/encoders.py [--picture FILE] [--megapixels 1 4 12] [--rounds N]

A picture is scaled to each size, and a disc of 45 % of it is cut out. One thread each, as in a
codec process; milliseconds, and bytes of the file.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from cases import picture
from isal import isal_zlib
from PIL import Image

from app.codecs.encode import WEBP_QUALITY, encode
from app.codecs.picture import Pixels
from app.pipelines.segment import matte

Encoder = Callable[[Pixels], int]


def cutout(image: Image.Image, megapixels: float) -> Pixels:
    """RGBA of so many megapixels."""
    scale = (megapixels * 1e6 / (image.width * image.height)) ** 0.5
    size = (round(image.width * scale), round(image.height * scale))
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS))
    y, x = np.mgrid[: size[1], : size[0]].astype(np.float32)
    distance = np.hypot((x / size[0] - 0.5) / 0.38, (y / size[1] - 0.5) / 0.38)
    alpha = np.clip((1 - distance) * size[1] / 12, 0, 1)
    return matte.cutout(pixels, (255 * alpha).astype(np.uint8))


def libpng(pixels: Pixels) -> int:
    """Run lengths by zlib, the fastest that OpenCV offers."""
    options = (
        cv2.IMWRITE_PNG_COMPRESSION, 1,
        cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE,
        cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP,
    )  # fmt: skip
    return len(cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA), options)[1])


def deflated(level: int) -> Encoder:
    """ISA-L alone at this level, filter 2, without a PNG around it."""

    def measure(pixels: Pixels) -> int:
        rows = pixels.reshape(len(pixels), -1)
        filtered = np.diff(rows, axis=0, prepend=np.zeros((1, rows.shape[1]), np.uint8))
        return len(isal_zlib.compress(filtered, level))

    return measure


def webp(method: int) -> Encoder:
    def measure(pixels: Pixels) -> int:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "WEBP", quality=WEBP_QUALITY, method=method)
        return file.tell()

    return measure


ENCODERS: dict[str, Encoder] = {
    "png, served": lambda pixels: len(encode(pixels, format="png")),
    "png, libpng over zlib": libpng,
    "  filter and ISA-L level 0": deflated(0),
    "  filter and ISA-L level 1": deflated(1),
    "  filter and ISA-L level 3": deflated(3),
    "webp, served": lambda pixels: len(encode(pixels, format="webp")),
    "webp, method 1": webp(1),
    "webp, method 4": webp(4),
}


def show(pixels: Pixels, encoders: Sequence[str], *, rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    size = {}
    for _ in range(rounds):
        for name, taken in seconds.items():
            began = time.perf_counter()
            size[name] = ENCODERS[name](pixels)
            taken.append(time.perf_counter() - began)
    print(f"\n{pixels.shape[1]} x {pixels.shape[0]}: {'p50':>24}{'fastest':>10}{'bytes':>14}")
    for name, taken in seconds.items():
        p50, fastest = 1000 * statistics.median(taken), 1000 * min(taken)
        print(f"{name:30}{p50:8.1f}ms{fastest:8.1f}ms{size[name]:14,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", type=Path, help="a photograph; a drawn one by default")
    parser.add_argument("--megapixels", type=float, nargs="+", default=[1, 4, 12])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="encoders whose names begin so")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    body = arguments.picture.read_bytes() if arguments.picture else picture()
    image = Image.open(io.BytesIO(body))
    chosen = [name for name in ENCODERS if name.startswith(arguments.only)]
    for megapixels in arguments.megapixels:
        show(cutout(image, megapixels), chosen, rounds=arguments.rounds)


if __name__ == "__main__":
    main()

"""Encoded arrays: files that others open, of a reasonable size, made without a second picture."""

import io
import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
from PIL import Image

from paddlepool.contracts.errors import OutputTooLarge
from paddlepool.tasks.codecs.encode import BAND_BYTES, LARGE_PIXELS, encode
from paddlepool.tasks.codecs.picture import Pixels

MODES = {(): "L", (3,): "RGB", (4,): "RGBA"}


def drawn(height: int, width: int, channels: tuple[int, ...]) -> Pixels:
    """Soft colours and grain; with an alpha, a disc of them before nothing."""
    random = np.random.default_rng(11)
    y, x = np.mgrid[:height, :width]
    shades = np.stack([x % 256, y % 256, (x + y) // 2 % 256, x * 0], axis=-1)
    noisy = np.clip(shades + random.normal(0, 3, shades.shape), 0, 255).astype(np.uint8)
    radius = min(height, width) * 0.4
    disc = np.clip(radius - np.hypot(y - height / 2, x - width / 2), 0, 1) * 255
    noisy[..., 3] = disc.astype(np.uint8)
    noisy[noisy[..., 3] == 0] = 0
    return np.ascontiguousarray(noisy[..., : channels[0]] if channels else noisy[..., 3])


@pytest.mark.parametrize("channels", MODES, ids=MODES.values())
@pytest.mark.parametrize(
    ("height", "width"),
    [
        pytest.param(1, 1, id="one pixel"),
        pytest.param(1, 16_384, id="one row"),
        pytest.param(16_384, 1, id="one column"),
        pytest.param(BAND_BYTES // 400 + 1, 100, id="a row more than a band"),
        pytest.param(2 * (BAND_BYTES // 400), 100, id="two bands"),
        pytest.param(433, 577, id="odd sides"),
    ],
)
def test_a_png_holds_every_pixel(height: int, width: int, channels: tuple[int, ...]) -> None:
    """Read by Pillow, which checks every checksum, and by OpenCV."""
    pixels = drawn(height, width, channels)
    file = encode(pixels, format="png").tobytes()
    with Image.open(io.BytesIO(file)) as image:
        assert (MODES[channels], "PNG") == (image.mode, image.format)
        assert np.array_equal(pixels, np.asarray(image))
    read = np.asarray(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED))
    assert np.array_equal(pixels[..., [2, 1, 0, 3][: channels[0]]] if channels else pixels, read)


@pytest.mark.parametrize("step", [None, 1, 300, 2001], ids=["filled", "rows", "parts", "whole"])
def test_a_large_png_holds_every_pixel(step: int | None) -> None:
    """Two threads deflate its parts, also while they are filled in, `step` rows at a time."""
    pixels = np.tile(drawn(667, 501, (4,)), (3, 4, 1))
    assert pixels[..., 0].size > LARGE_PIXELS
    height = len(pixels)
    result = pixels if step is None else np.zeros_like(pixels)

    def fill() -> Iterator[int]:
        for top in range(0, height, step or height):
            bottom = min(height, top + (step or height))
            result[top:bottom] = pixels[top:bottom]
            yield bottom

    file = encode(result, format="png", ready=fill()).tobytes()
    with Image.open(io.BytesIO(file)) as image:
        assert np.array_equal(pixels, np.asarray(image))
    read = np.asarray(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED))
    assert np.array_equal(pixels[..., [2, 1, 0, 3]], read)
    stream, at = b"", 8
    while at < len(file):
        length, kind = struct.unpack_from(">I4s", file, at)
        stream += file[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    zlib.decompress(stream)  # checks the checksum of the whole, which the others ignore


def test_a_png_is_made_of_a_view_with_gaps() -> None:
    """A crop of a larger picture."""
    pixels = drawn(60, 80, (3,))[10:50, 5:70:2]
    with Image.open(io.BytesIO(encode(pixels, format="png").tobytes())) as image:
        assert np.array_equal(pixels, np.asarray(image))


def test_a_cutout_is_little_larger_than_zlib_makes_it() -> None:
    """At most a fifth more than run lengths by libpng, where every channel has grain of its own."""
    pixels = drawn(868, 1152, (4,))
    options = (
        cv2.IMWRITE_PNG_COMPRESSION, 1,
        cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE,
        cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP,
    )  # fmt: skip
    libpng = cv2.imencode(".png", pixels, options)[1]
    assert len(encode(pixels, format="png")) < 1.2 * len(libpng)


def test_no_second_picture_is_held() -> None:
    """16 MB of pixels cost their file and a band."""
    pixels = np.tile(drawn(64, 2048, (4,)), (32, 1, 1))
    encode(pixels[:64], format="png")
    tracemalloc.start()
    try:
        file = encode(pixels, format="png")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(file) + 4 * BAND_BYTES < pixels.nbytes


@pytest.mark.parametrize("kind", ["webp", "jpg"])
def test_a_lossy_file_is_close(kind: str) -> None:
    """Of smooth colours."""
    y, x = np.mgrid[:90, :120]
    pixels = np.stack([x, y, (x + y) // 2], axis=-1).astype(np.uint8)
    with Image.open(io.BytesIO(encode(pixels, format=kind).tobytes())) as image:
        found = np.asarray(image.convert("RGB"), float)
    assert np.abs(found - pixels).mean() < 2


def test_a_mask_as_webp_is_exact() -> None:
    y, x = np.mgrid[:90, :120]
    mask = ((x + y) % 256 * (x > 40)).astype(np.uint8)
    with Image.open(io.BytesIO(encode(mask, format="webp").tobytes())) as image:
        np.testing.assert_array_equal(np.asarray(image.convert("L")), mask)


@pytest.mark.slow
def test_more_detail_than_webp_holds_is_too_large() -> None:
    """Noise of 20 megapixels: the error names other formats."""
    noise = np.random.default_rng(1).integers(0, 256, (4_500, 4_500, 1), np.uint8)
    with pytest.raises(OutputTooLarge, match="format=png"):
        encode(noise.repeat(3, axis=2), format="webp")


@pytest.mark.parametrize("kind", ["png", "webp", "jpg"])
def test_a_small_file_is_made_of_pixels_that_are_filled_in_before(kind: str) -> None:
    pixels = drawn(40, 50, (3,))
    result = np.zeros_like(pixels)

    def fill() -> Iterator[int]:
        for row in range(40):
            result[row] = pixels[row]
            yield row + 1

    file = encode(result, format=kind, ready=fill())
    assert np.array_equal(encode(pixels, format=kind), file)

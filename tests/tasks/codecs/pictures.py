"""Pictures made for tests: every format, mode and orientation, and the bombs."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def corners(width: int = 48, height: int = 32) -> Image.Image:
    """Four flat quarters: red, green over blue, white; no two turns or flips look alike."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (220, 20, 20)
    pixels[: height // 2, width // 2 :] = (20, 200, 20)
    pixels[height // 2 :, : width // 2] = (20, 20, 220)
    pixels[height // 2 :, width // 2 :] = 255
    return Image.fromarray(pixels)


def photo(width: int = 64, height: int = 48) -> Image.Image:
    """A bright disc on a dark gradient: something to cut out, with texture."""
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    inside = np.hypot(rows - height / 2, columns - width / 2) < min(width, height) / 3
    noise = np.random.default_rng(7).integers(0, 24, (height, width, 3))
    ground = np.stack([rows / height * 90, columns / width * 90, rows * 0 + 40], 2)
    return Image.fromarray((np.where(inside[..., None], 210, ground) + noise).astype(np.uint8))


def turned(orientation: int, kind: str, **options: Any) -> bytes:
    """`corners()` stored turned, with the EXIF tag that turns it back."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,  # shown after a quarter turn clockwise
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = corners() if undo is None else corners().transpose(undo)
    if kind not in ("PNG", "TIFF"):
        options["quality"] = 95
    return encoded(stored, kind, exif=exif, **options)


def chunk(name: bytes, data: bytes, *, length: int | None = None) -> bytes:
    return (
        struct.pack(">I", len(data) if length is None else length)
        + name
        + data
        + struct.pack(">I", zlib.crc32(name + data))
    )


def png(width: int, height: int, *chunks: bytes) -> bytes:
    """A PNG of one-bit grey with this header and these chunks after it."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


def lying_png(name: bytes, length: int) -> bytes:
    """A PNG of one pixel with an empty chunk that says it is that long."""
    return png(1, 1, chunk(name, b"", length=length))


def blank_png(width: int, height: int) -> bytes:
    """A valid PNG of that size in a few kilobytes."""
    row = b"\x00" * (1 + -(-width // 8))
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png(width, height, chunk(b"IDAT", data))


def keyed_png(pixels: np.ndarray, *, bits: int, key: list[int], interlaced: bool) -> bytes:
    """A PNG of these pixels (1, 4, samples) with a transparent colour."""
    columns = [pixels[:, at] for at in ((0,), (2,), (1, 3))] if interlaced else [pixels]
    rows = b""
    for part in columns:  # Adam7: the first, fourth and sixth pass have pixels
        digits = "".join(format(value, f"0{bits}b") for value in part.ravel().tolist())
        digits += "0" * (-len(digits) % 8)
        rows += b"\0" + int(digits, 2).to_bytes(len(digits) // 8, "big")
    kind = 0 if pixels.shape[2] == 1 else 2
    header = struct.pack(">IIBBBBB", pixels.shape[1], 1, bits, kind, 0, 0, interlaced)
    chunks = (
        (b"IHDR", header),
        (b"tRNS", struct.pack(f">{len(key)}H", *key)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in chunks)


def segment(marker: int, data: bytes) -> bytes:
    """A JPEG segment with its marker and length."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def jpeg_of_empty_scans(
    width: int, height: int, *, scans: int, components: int = 1, factors: int = 0x11
) -> bytes:
    """A progressive JPEG of a few kilobytes: DC values of nothing, then scans that refine nothing.

    The first component has the sampling factors, the others 1 x 1.
    """
    blocks = -(-width // 8) * -(-height // 8)
    numbers = range(1, components + 1)
    sampling = [factors] + [0x11] * (components - 1)
    frame = struct.pack(">BHHB", 8, height, width, components) + b"".join(
        bytes([number, factor, 0]) for number, factor in zip(numbers, sampling, strict=True)
    )
    one_code = bytes([1] + [0] * 15)
    tables = segment(0xDB, bytes([0] + [1] * 64)) + segment(0xC4, b"\x00" + one_code + b"\x00")
    tables += segment(0xC4, b"\x10" + one_code + b"\xe0")  # its one code: no more in 16,384 blocks
    listed = b"".join(bytes([number, 0]) for number in numbers)
    first = segment(0xDA, bytes([components]) + listed + b"\x00\x00\x00")
    first += bytes(components * blocks // 8 + 1)
    runs = bytes(2 * (blocks // 16_384 + 1))
    later = segment(0xDA, b"\x01\x01\x00\x01\x3f\x10") + runs
    return b"\xff\xd8" + tables + segment(0xC2, frame) + first + later * (scans - 1) + b"\xff\xd9"


def padded_png(padding: bytes) -> bytes:
    """A small PNG with these bytes behind its header."""
    plain = encoded(corners(), "PNG")
    return plain[:33] + padding + plain[33:]


UPRIGHT = np.asarray(corners()).astype(int)


def near(expected: np.ndarray, got: np.ndarray, *, mean: float) -> None:
    assert expected.shape == got.shape
    assert np.abs(expected.astype(int) - got.astype(int)).mean() <= mean

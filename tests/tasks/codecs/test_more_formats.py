"""TIFF, AVIF and HEIC: what is read, what is refused by name, and mutants of good files."""

import contextlib
import io
import os
import struct
import time
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from paddlepool.contracts.errors import (
    ImageUnreadable,
    InputError,
    ResolutionTooHigh,
    UnsupportedMediaType,
)
from paddlepool.tasks.codecs import limits
from paddlepool.tasks.codecs.decode import decode, pages_of
from paddlepool.tasks.codecs.limits import PictureLimits
from tests.tasks.codecs import heic_samples, pictures
from tests.tasks.codecs.pictures import UPRIGHT, near

LIMITS = PictureLimits()
COMPRESSIONS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits", "jpeg")


def heic(name: str) -> bytes:
    pytest.importorskip("pi_heif", reason="NOT TESTED: the extra `heic` is not installed")
    found: bytes = getattr(heic_samples, name)
    return found


def tiff(image: Image.Image, **options: Any) -> bytes:
    return pictures.encoded(image, "TIFF", **options)


def entry(body: bytes, tag: int) -> int:
    """Where a little-endian TIFF's directory has the entry."""
    (start,) = struct.unpack_from("<L", body, 4)
    (count,) = struct.unpack_from("<H", body, start)
    places = (start + 2 + 12 * number for number in range(count))
    return next(at for at in places if struct.unpack_from("<H", body, at)[0] == tag)


def altered(body: bytes, tag: int, value: int, *, count: int | None = None) -> bytes:
    """A little-endian TIFF with another value, of four bytes, in the directory."""
    at = entry(body, tag)
    number = struct.unpack_from("<L", body, at + 4)[0] if count is None else count
    return body[: at + 2] + struct.pack("<HLL", 4, number, value) + body[at + 12 :]


def pages(*kinds: int) -> bytes:
    """A TIFF with a page of each kind, as tag 254 says it; the second page is upside down."""
    file = io.BytesIO()
    first, *others = [pictures.corners().rotate(180 * (n == 1)) for n, _ in enumerate(kinds)]
    for image, kind in zip((first, *others), kinds, strict=True):
        image.encoderinfo = {"tiffinfo": {254: kind}}
    first.save(file, "TIFF", save_all=True, append_images=others, tiffinfo={254: kinds[0]})
    return file.getvalue()


def test_a_page_of_a_tiff_is_decoded_by_its_place() -> None:
    body = pages(2, 2)
    first, second = (decode(body, LIMITS, place) for place in (0, 1))
    assert np.array_equal(first[::-1, ::-1], second)


def test_smaller_versions_and_masks_are_no_pages() -> None:
    body = pages(1, 2, 1, 4, 0)
    assert pages_of(body, LIMITS, 9) == [0, 1, 4]
    assert pages_of(body, LIMITS, 2) == [0, 1]
    assert pages_of(pictures.encoded(pictures.corners(), "PNG"), LIMITS, 9) == [0]


def test_directories_in_a_circle_end() -> None:
    body = bytearray(pages(2, 2))
    start = int.from_bytes(body[4:8], "little")
    end = start + 2 + 12 * int.from_bytes(body[start : start + 2], "little")
    body[end : end + 4] = body[4:8]
    assert pages_of(bytes(body), LIMITS, 9) == [0]
    body[end : end + 4] = struct.pack("<L", len(body) + 9)
    assert pages_of(bytes(body), LIMITS, 1) == [0]
    with pytest.raises(ImageUnreadable, match="the TIFF data is damaged"):
        pages_of(bytes(body), LIMITS, 9)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_tiff_decodes_to_its_pixels(compression: str) -> None:
    """Six ways to pack it."""
    near(UPRIGHT, decode(tiff(pictures.corners(), compression=compression), LIMITS), mean=2.0)


def test_the_first_frame_of_a_sequence_is_read_as_an_item() -> None:
    """A damaged track of the AVIF is not opened."""
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    body = pictures.encoded(frames[0], "AVIF", save_all=True, append_images=frames[1:])
    at = body.index(b"stsz")
    pixels = decode(body[: at + 8] + b"\0\0\0\1" + body[at + 12 :], LIMITS)
    near(np.array([255, 0, 0]), pixels[4, 4], mean=4.0)


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4", "4:0:0"])
@pytest.mark.parametrize("size", [(201, 151), (1, 1)])
def test_avifs_of_all_subsamplings_are_accepted(subsampling: str, size: tuple[int, int]) -> None:
    body = pictures.encoded(pictures.photo(*size), "AVIF", subsampling=subsampling, speed=9)
    assert decode(body, LIMITS).shape[:2] == size[::-1]


def test_a_heic_decodes_upright_with_its_transparency() -> None:
    """As it is, turned by its own box, and with an alpha of its own."""
    near(UPRIGHT, decode(heic("PLAIN"), LIMITS), mean=3.0)
    near(UPRIGHT, decode(heic("TURNED"), LIMITS), mean=3.0)
    assert decode(heic("ALPHA"), LIMITS)[[2, -2], 4, 3].tolist() == pytest.approx([20, 236], abs=20)


def test_without_its_decoder_a_heic_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """415, with what is accepted there."""
    monkeypatch.setattr(limits, "accepted_formats", lambda: limits.ACCEPTED)
    with pytest.raises(UnsupportedMediaType) as caught:
        decode(heic_samples.PLAIN, LIMITS)
    assert caught.value.received == "HEIC"
    assert "TIFF, AVIF" in caught.value.message
    assert "HEIC" not in str(caught.value.limit)


def alpha_tiff(associated: bool) -> bytes:
    """Half-transparent (200, 100, 50): stored as it is, or multiplied."""
    body = tiff(
        Image.new("RGBA", (8, 8), (100, 50, 25, 128) if associated else (200, 100, 50, 128))
    )
    at = entry(body, 338)
    return body[: at + 8] + struct.pack("<H", 1 if associated else 2) + body[at + 10 :]


def stored(
    values: np.ndarray,
    colours: int,
    order: Literal["<", ">"] = "<",
    *,
    planes: int = 1,
    extra: int | None = None,
) -> bytes:
    """A TIFF (height, width, samples), of which Pillow saves few kinds; `order` as in struct.

    The samples are stored pixel by pixel, or in separate `planes` (2).
    """
    height, width, samples = values.shape
    layers = [values] if planes == 1 else np.split(values, samples, axis=2)
    data = [layer.astype(values.dtype.newbyteorder(order)).tobytes() for layer in layers]
    directory = ImageFileDirectory_v2(prefix=b"II" if order == "<" else b"MM")
    directory[256], directory[257] = width, height
    directory[258], directory[277] = (8 * values.itemsize,) * samples, samples
    directory[259], directory[262], directory[284] = 1, colours, planes
    if extra is not None:
        directory[338] = extra
    # One strip of all rows, or one for each plane, directly behind the directory.
    directory[278], directory[279] = height, tuple(map(len, data))
    directory[273] = tuple(len(data[0]) * number for number in range(len(data)))
    file = io.BytesIO()
    directory.save(file)
    return file.getvalue() + b"".join(data)


RAMP = np.array([[0, 100, 255]], np.uint16)[..., None] * 257


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(tiff(Image.new("CMYK", (4, 4), (0, 255, 255, 0))), [255, 0, 0], id="cmyk"),
        pytest.param(tiff(Image.new("L", (4, 4), 90)), [90] * 3, id="grey"),
        pytest.param(tiff(Image.new("LA", (4, 4), (90, 7))), [90, 90, 90, 7], id="grey-alpha"),
        pytest.param(tiff(Image.new("1", (4, 4), 1)), [255] * 3, id="one-bit"),
        pytest.param(tiff(Image.new("1", (40, 4), 1), compression="group4"), [255] * 3, id="fax"),
        pytest.param(
            tiff(Image.new("RGB", (4, 4), (10, 20, 30)).quantize(4)), [10, 20, 30], id="palette"
        ),
        pytest.param(alpha_tiff(False), [200, 100, 50, 128], id="alpha"),
        pytest.param(alpha_tiff(True), [199, 99, 50, 128], id="alpha-multiplied"),
        pytest.param(stored(RAMP[:, 1:], 1), [100] * 3, id="sixteen-grey"),
        pytest.param(stored(RAMP[:, 1:].repeat(3, 2), 2), [100] * 3, id="sixteen-rgb"),
        pytest.param(stored(RAMP[:, 1:].repeat(3, 2), 2, ">"), [100] * 3, id="big-endian"),
        pytest.param(stored(RAMP[:, ::-1].repeat(4, 2), 5), [0, 0, 0], id="sixteen-cmyk"),
    ],
)
def test_every_accepted_kind_of_tiff_has_its_colours(body: bytes, expected: list[int]) -> None:
    """Grey, palette, CMYK, 1 and 16 bits, alpha of both kinds."""
    assert np.abs(np.array(expected) - decode(body, LIMITS)[0, 0]).max() <= 2


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(
    ("colours", "extra", "pixel", "expected"),
    [
        pytest.param(2, None, [50, 200, 100], [50, 200, 100], id="rgb"),
        pytest.param(2, 2, [50, 200, 100, 60], [50, 200, 100, 60], id="alpha"),
        pytest.param(2, 1, [25, 100, 50, 128], [50, 199, 100, 128], id="alpha-multiplied"),
        pytest.param(2, 0, [50, 200, 100, 60], [50, 200, 100], id="unused"),
        pytest.param(5, None, [205, 55, 155, 0], [50, 200, 100], id="cmyk"),
    ],
)
def test_separate_planes_are_read_as_pixels(
    dtype: type[np.uint8 | np.uint16],
    order: Literal["<", ">"],
    colours: int,
    extra: int | None,
    pixel: list[int],
    expected: list[int],
) -> None:
    """Planes of 8 and 16 bits: every pixel is where it belongs."""
    values: np.ndarray = np.zeros((6, 9, len(pixel)), dtype)
    values[..., len(expected) if extra is None else 3 :] = 255
    scale = 257 if dtype is np.uint16 else 1
    values[1:, 2:] = np.multiply(pixel, scale)
    got = decode(stored(values, colours, order, planes=2, extra=extra), LIMITS).astype(int)
    assert got.shape == (6, 9, len(expected))
    assert np.abs(got[1:, 2:] - expected).max() <= 2
    assert np.abs(got[0] - got[5, 0]).max() == 0
    assert np.abs(got[0, 0, :3] - expected[:3]).max() > 40


def plain() -> bytes:
    return tiff(pictures.corners(), compression="tiff_lzw")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"II+\0" + bytes(60), "BigTIFF", id="big"),
        pytest.param(altered(plain(), 259, 6), "compression 6", id="old-jpeg"),
        pytest.param(altered(plain(), 259, 34676), "compression 34676", id="sgi-log"),
        pytest.param(altered(plain(), 262, 8), "interpretation 8", id="lab"),
        pytest.param(altered(plain(), 262, 6), "interpretation 6", id="ycbcr-unpacked"),
        pytest.param(altered(plain(), 277, 7), "7 samples", id="samples"),
        pytest.param(tiff(Image.new("F", (4, 4))), "32 bits in format 3", id="floats"),
        pytest.param(tiff(Image.new("I", (4, 4))), "32 bits in format 2", id="signed"),
        pytest.param(stored(RAMP, 0), "16 bits in which 0 is white", id="sixteen-inverted"),
        pytest.param(stored(RAMP.repeat(2, 2), 1, extra=2), "extra samples 2", id="sixteen-alpha"),
        pytest.param(
            stored(RAMP.repeat(2, 2).astype(np.uint8), 1, planes=2, extra=2),
            "configuration 2",
            id="alpha-plane",
        ),
        pytest.param(
            stored(RAMP.repeat(5, 2).astype(np.uint8), 5, extra=2), "5 samples", id="cmyk-alpha"
        ),
    ],
)
def test_other_kinds_of_tiff_are_refused_by_name(body: bytes, says: str) -> None:
    """Which would be decoded wrongly, or by code that nobody keeps: what it is, what is read."""
    with pytest.raises(UnsupportedMediaType) as caught:
        decode(body, LIMITS)
    assert says in caught.value.message
    assert says in str(caught.value.received)


def test_libtiff_does_not_write_to_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    """A fax with damaged rows is decoded or refused in silence, and what follows is heard."""
    body = bytearray(SAMPLES["fax"])
    for at in range(20, len(body) // 2, 7):
        body[at] ^= 0xFF
    with contextlib.suppress(InputError):
        decode(bytes(body), LIMITS)
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def avif_claiming(width: int, height: int) -> bytes:
    body = pictures.encoded(pictures.corners(), "AVIF")
    at = body.index(b"ispe") + 8
    return body[:at] + struct.pack(">LL", width, height) + body[at + 8 :]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(altered(plain(), 256, 16_385), ResolutionTooHigh, id="tiff-long"),
        pytest.param(altered(plain(), 257, 2**32 - 1), ResolutionTooHigh, id="tiff-4G"),
        pytest.param(altered(plain(), 256, 0), ImageUnreadable, id="tiff-empty"),
        pytest.param(altered(plain(), 256, 0, count=0), ImageUnreadable, id="tiff-no-width"),
        pytest.param(altered(plain(), 278, 1), ImageUnreadable, id="tiff-too-few-strips"),
        pytest.param(altered(plain(), 273, 8, count=2**32 - 1), ImageUnreadable, id="tiff-strips"),
        pytest.param(plain()[:4] + b"\xff" * 4 + plain()[8:], ImageUnreadable, id="tiff-nowhere"),
        pytest.param(plain()[:6], ImageUnreadable, id="tiff-header-cut"),
        pytest.param(avif_claiming(16_385, 32), ResolutionTooHigh, id="avif-long"),
        pytest.param(avif_claiming(8_100, 8_100), ResolutionTooHigh, id="avif-66-megapixels"),
        pytest.param(avif_claiming(0, 5), ImageUnreadable, id="avif-empty"),
        pytest.param(b"\0\0\0\x14ftypavif\0\0\0\0avif", ImageUnreadable, id="avif-no-size"),
        pytest.param(
            b"\0\0\0\x14ftypavif\0\0\0\0avif\0\0\0\x01meta" + b"\xff" * 8,
            ImageUnreadable,
            id="avif-box-of-16-EiB",
        ),
    ],
)
def test_lying_headers_are_refused(body: bytes, error: type[InputError]) -> None:
    """Sizes, strips and boxes that the file cannot have, before a decoder allocates for them."""
    before = time.process_time()
    with pytest.raises(error):
        decode(body, LIMITS)
    assert time.process_time() - before < 2.0


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "AVIF", "HEIC"])
def test_truncated_files_are_unreadable(part: float, kind: str) -> None:
    """A file that was cut off is refused, not returned half grey."""
    if kind == "HEIC":
        body = heic("PLAIN")
    elif kind == "AVIF":
        body = pictures.encoded(pictures.photo(200, 150), "AVIF")
    else:
        body = tiff(pictures.photo(200, 150), compression=kind)
    with pytest.raises(ImageUnreadable):
        decode(body[: int(len(body) * part)], LIMITS)


SAMPLES = {
    "raw": tiff(pictures.photo(), compression="raw"),
    "lzw": tiff(pictures.photo(), compression="tiff_lzw"),
    "deflate": tiff(pictures.photo(), compression="tiff_adobe_deflate"),
    "jpeg": tiff(pictures.photo(), compression="jpeg"),
    "fax": tiff(pictures.photo().convert("1"), compression="group4"),
    "avif": pictures.encoded(pictures.photo(), "AVIF"),
    "heic": heic_samples.ALPHA,
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SAMPLES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mutants_decode_or_are_refused(kind: str, data: st.DataObject) -> None:
    """Bytes changed, cut out and doubled, in the headers more than elsewhere: pixels of a size
    within the limits, or an error that is the client's, and quickly."""
    body = bytearray(SAMPLES[kind])
    places = st.one_of(
        st.integers(0, len(body) - 1),
        st.integers(0, min(400, len(body) - 1)),
        st.integers(max(0, len(body) - 400), len(body) - 1),
    )
    for at in data.draw(st.lists(places, min_size=1, max_size=6)):
        body[at] = data.draw(
            st.sampled_from([0, 1, 2, 7, 127, 128, 254, 255]) | st.integers(0, 255)
        )
    if data.draw(st.booleans()):
        start = data.draw(places)
        del body[start : start + data.draw(st.integers(1, 64))]
    before = time.process_time()
    try:
        pixels = decode(bytes(body), PictureLimits(pixels=1_000_000, side=4_000))
    except InputError:
        pass
    else:
        assert pixels.shape[0] * pixels.shape[1] <= 1_000_000
        assert pixels.dtype == np.uint8
    assert time.process_time() - before < 2.0

"""Uploaded bytes to upright pixels: formats, modes, orientations, limits and refusals."""

import struct
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paddlepool.contracts.errors import (
    ConfigError,
    FileMissing,
    ImageUnreadable,
    ResolutionTooHigh,
    TooManyScans,
    UnsupportedMediaType,
)
from paddlepool.tasks.codecs.decode import check_scans, decode
from paddlepool.tasks.codecs.limits import PictureLimits, formats_named
from tests.tasks.codecs import pictures
from tests.tasks.codecs.pictures import UPRIGHT, near

LIMITS = PictureLimits()


@pytest.mark.parametrize("kind", pictures.FORMATS)
def test_every_accepted_format_decodes_to_its_pixels(kind: str) -> None:
    """JPEG, PNG, WebP, GIF and BMP come out as the picture that went in."""
    options = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    near(UPRIGHT, decode(pictures.encoded(pictures.corners(), kind, **options), LIMITS), mean=6.0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied_once(orientation: int, kind: str) -> None:
    """All eight orientations come out upright; an AVIF has boxes for them as well."""
    near(UPRIGHT, decode(pictures.turned(orientation, kind), LIMITS), mean=8.0)


def test_broken_metadata_does_not_make_a_picture_unreadable() -> None:
    """An EXIF block of noise leaves the picture as it is stored."""
    body = pictures.encoded(pictures.corners(), "JPEG", quality=95, exif=b"Exif\0\0" + b"\xff" * 64)
    near(UPRIGHT, decode(body, LIMITS), mean=6.0)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_too_large_for_metadata_is_not_looked_at(kind: str) -> None:
    """An orientation of half a million fractions, each an object of Pillow's, took seconds."""
    count = 500_000
    entry = struct.pack(">LHHHLLL", 8, 1, 0x0112, 5, count, 26, 0)
    exif = b"Exif\0\0MM\0*" + entry + struct.pack(">LL", 6, 1) * count
    body = pictures.encoded(pictures.corners(), kind, exif=exif)
    before = time.process_time()
    near(UPRIGHT, decode(body, LIMITS), mean=6.0)
    assert time.process_time() - before < 0.5


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_the_first_frame_or_page_is_taken(kind: str) -> None:
    """Of a red and a blue one, the red one."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    body = pictures.encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert decode(body, LIMITS)[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize(("kind", "mean"), [("PNG", 0.0), ("WEBP", 0.0), ("AVIF", 1.0)])
def test_alpha_is_kept_as_it_is(kind: str, mean: float) -> None:
    """RGBA stays RGBA, with the stored alpha."""
    image = pictures.corners()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    pixels = decode(pictures.encoded(image, kind, lossless=True, quality=100), LIMITS)
    near(np.asarray(image)[..., 3], pixels[..., 3], mean=mean)


def test_an_alpha_that_is_opaque_everywhere_is_dropped() -> None:
    """255 everywhere says nothing and would cost a third more memory."""
    body = pictures.encoded(pictures.corners().convert("RGBA"), "PNG")
    assert decode(body, LIMITS).shape == UPRIGHT.shape


def png(image: Image.Image, **options: Any) -> bytes:
    return pictures.encoded(image, "PNG", **options)


def with_hole(image: Image.Image, value: int) -> bytes:
    """A PNG with one pixel of a value that is declared transparent."""
    image.putpixel((0, 0), value)
    return png(image, transparency=value)


PALETTE = Image.new("P", (8, 8), 1)
PALETTE.putpalette([0, 0, 0, 200, 100, 50])
SIXTEEN_BITS = Image.fromarray(np.full((8, 8), 100 * 257, np.uint16))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            pictures.encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95),
            [255, 0, 0],
            id="cmyk",
        ),
        pytest.param(png(Image.new("LA", (8, 8), (100, 50))), [100, 100, 100, 50], id="grey-alpha"),
        pytest.param(png(PALETTE), [200, 100, 50], id="palette"),
        pytest.param(png(Image.new("1", (8, 8), 1)), [255, 255, 255], id="one-bit"),
        pytest.param(png(SIXTEEN_BITS), [100, 100, 100], id="sixteen-bit"),
        pytest.param(with_hole(PALETTE.copy(), 0), [200, 100, 50, 255], id="palette-transparent"),
        pytest.param(
            with_hole(Image.new("L", (8, 8), 90), 7), [90, 90, 90, 255], id="grey-transparent"
        ),
        pytest.param(
            with_hole(SIXTEEN_BITS.copy(), 999), [100, 100, 100, 255], id="sixteen-transparent"
        ),
    ],
)
def test_every_colour_mode_becomes_eight_bit_rgb(body: bytes, expected: list[int]) -> None:
    """Modes decode to what they show: 16 bits are scaled and not clipped, and a colour declared
    transparent has alpha 0."""
    pixels = decode(body, LIMITS)
    assert pixels.dtype == np.uint8
    assert np.abs(np.array(expected) - pixels[4, 4]).max() <= 2
    if expected[3:] == [255]:
        assert pixels[0, 0, 3] == 0


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(
    ("samples", "bits", "key"),
    [
        (1, 1, [1]),
        (1, 2, [3]),
        (1, 2, [0x7FFC | 2]),  # only the lowest bits count
        (1, 4, [8]),
        (1, 8, [90]),
        (1, 16, [0x1234]),
        (3, 8, [1, 2, 250]),
        (3, 16, [0x4A52, 0xB5AD, 0x294A]),
    ],
)
def test_the_transparent_colour_of_a_png_is_compared_at_its_own_bits(
    samples: int, bits: int, key: list[int], interlaced: bool
) -> None:
    """Exactly the pixels of that colour have alpha 0; others differ from it in one bit."""
    colour = np.array(key) & ((1 << bits) - 1)
    pixels = np.array([[colour, colour, colour ^ 1, colour ^ (1 << bits - 1)]])
    body = pictures.keyed_png(pixels, bits=bits, key=key, interlaced=interlaced)
    result = decode(body, LIMITS)
    assert result[0, :, 3].tolist() == [0, 0, 255, 255]
    shown = pixels[0, 2:].repeat(3 // samples, axis=1) * 255 / ((1 << bits) - 1)
    assert np.abs(shown - result[0, 2:, :3]).max() < 1


def test_a_gif_is_transparent_where_its_first_frame_leaves_the_canvas_free() -> None:
    """As browsers show it, and not in the first colour of its palette."""
    body = pictures.encoded(Image.new("P", (4, 3), 1), "GIF")
    assert body[6:10] == b"\x04\0\x03\0"
    wider = body[:6] + b"\x07\0\x05\0" + body[10:]
    at = wider.index(b",\0\0\0\0")
    wider = wider[: at + 1] + b"\x02\0\x01\0" + wider[at + 5 :]
    alpha = np.zeros((5, 7), np.uint8)
    alpha[1:4, 2:6] = 255
    assert np.array_equal(decode(wider, LIMITS)[..., 3], alpha)
    assert decode(body, LIMITS).shape == (3, 4, 3)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"\x00\x00\x00\x18ftypisom" + bytes(40), "ISO media"),
        (b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(40), "JPEG 2000"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "EPS"),
        (b"hello, this is not a picture", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_formats_are_refused_by_name(body: bytes, name: str | None) -> None:
    """The refusal says what the file is and what would be accepted."""
    with pytest.raises(UnsupportedMediaType) as caught:
        decode(body, LIMITS)
    assert caught.value.received == name
    assert "JPEG, PNG, WebP, GIF, BMP" in caught.value.message


def test_an_operator_may_accept_fewer_formats() -> None:
    """415 with the list for the others; a name that is not known ends the start."""
    limits = PictureLimits(formats=formats_named(["png", "JPEG"]))
    assert decode(pictures.encoded(pictures.corners(), "PNG"), limits).shape == UPRIGHT.shape
    with pytest.raises(UnsupportedMediaType) as caught:
        decode(pictures.encoded(pictures.corners(), "GIF"), limits)
    assert (caught.value.limit, caught.value.received) == ("PNG, JPEG", "GIF")
    with pytest.raises(ConfigError, match="PADDLEPOOL_PICTURE_FORMATS: jxl"):
        formats_named(["png", "jxl"])


def test_no_bytes_are_a_missing_file() -> None:
    """An empty upload is not called an unknown format."""
    with pytest.raises(FileMissing):
        decode(b"", LIMITS)


ADOBE_CMYK = Image.merge("CMYK", [*pictures.photo(200, 150).split(), Image.new("L", (200, 150))])


@pytest.mark.parametrize(
    "image",
    [pictures.photo(200, 150), pictures.photo(200, 150).convert("L"), ADOBE_CMYK],
    ids=lambda image: str(image.mode),
)
def test_a_jpeg_cut_off_and_closed_again_is_unreadable(image: Image.Image) -> None:
    """An end marker after half the data does not make the grey half acceptable."""
    body = pictures.encoded(image, "JPEG")
    with pytest.raises(ImageUnreadable):
        decode(body[: len(body) // 2] + b"\xff\xd9", LIMITS)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_complete_jpeg_that_ends_in_grey_is_readable(mode: str) -> None:
    """A picture may really be mid-grey in its last corner."""
    image = ADOBE_CMYK.copy() if mode == "CMYK" else pictures.photo(200, 150).convert(mode)
    image.paste((127,) * 4 if mode == "CMYK" else "#808080", (100, 75, 200, 150))
    assert decode(pictures.encoded(image, "JPEG"), LIMITS).shape == (150, 200, 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_jpeg_can_be_decoded_at_a_part_of_its_size(mode: str, parts: int) -> None:
    """Rounded up; a part that is missing is found as in the whole picture."""
    image = ADOBE_CMYK.copy() if mode == "CMYK" else pictures.photo(200, 150).convert(mode)
    image = image.crop((0, 0, 199, 149))
    asked: list[tuple[int, int]] = []

    def reduction(height: int, width: int) -> int:
        asked.append((height, width))
        return parts

    body = pictures.encoded(image, "JPEG")
    pixels = decode(body, LIMITS, reduction=reduction)
    assert (pixels.shape, asked) == ((-(-149 // parts), -(-199 // parts), 3), [(149, 199)])
    means = decode(body, LIMITS).mean((0, 1))
    assert np.abs(pixels.mean((0, 1)) - means).max() < 4
    with pytest.raises(ImageUnreadable):
        decode(body[: len(body) // 2] + b"\xff\xd9", LIMITS, reduction=reduction)
    image.paste((127,) * 4 if mode == "CMYK" else "#808080", (100, 75, 199, 149))
    grey = pictures.encoded(image, "JPEG")
    assert decode(grey, LIMITS, reduction=reduction).shape == pixels.shape


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_reduced_jpeg_is_cut_short_where_a_whole_one_is(parts: int) -> None:
    """Also if only its last rows are missing."""
    body = pictures.encoded(pictures.photo(800, 603), "JPEG")
    found = 0
    for share in np.linspace(0.9, 0.999, 12):
        cut = body[: round(len(body) * share)] + b"\xff\xd9"
        try:
            decode(cut, LIMITS)
        except ImageUnreadable:
            found += 1
            with pytest.raises(ImageUnreadable):
                decode(cut, LIMITS, reduction=lambda *_: parts)
    assert found > 8


SMALL = PictureLimits(pixels=4_899, side=100)


@pytest.mark.parametrize("kind", pictures.FORMATS)
@pytest.mark.parametrize(
    ("width", "height", "limit"),
    [(69, 71, None), (70, 70, 4_899), (100, 10, None), (101, 10, 100), (10, 101, 100)],
)
def test_size_limits_hold_at_the_very_pixel(
    kind: str, width: int, height: int, limit: int | None
) -> None:
    """n pass, n + 1 is refused with both numbers, for the area and for each side."""
    body = pictures.encoded(Image.new("RGB", (width, height)), kind)
    if limit is None:
        assert decode(body, SMALL).shape[:2] == (height, width)
        return
    with pytest.raises(ResolutionTooHigh) as caught:
        decode(body, SMALL)
    assert caught.value.limit == limit
    assert caught.value.received in (width * height, width, height)
    assert f"{width} x {height}" in caught.value.message


def test_the_limits_of_the_service_are_65_megapixels_and_16384_a_side() -> None:
    """The real limits at n and n + 1, from PNG headers of a few bytes."""
    with pytest.raises(ResolutionTooHigh):
        decode(pictures.blank_png(16_385, 8), LIMITS)
    assert decode(pictures.blank_png(16_384, 8), LIMITS).shape == (8, 16_384, 3)
    with pytest.raises(ResolutionTooHigh):
        decode(pictures.png(10_000, 6_501), LIMITS)
    assert decode(pictures.blank_png(10_000, 6_500), LIMITS).shape == (6_500, 10_000, 3)


@pytest.mark.parametrize(
    ("most", "width", "height", "components"),
    [
        (100, 16, 16, 1),
        (100, 2_000, 2_500, 1),
        (48, 4_000, 3_000, 1),
        (48, 8_000, 6_000, 1),
        (46, 8_000, 6_000, 3),
    ],
)
def test_a_jpeg_may_have_a_hundred_scans_and_a_large_one_fewer(
    most: int, width: int, height: int, components: int
) -> None:
    """48 passes of the components over the picture from 12 MP on, more in proportion below."""
    made = partial(pictures.jpeg_of_empty_scans, width, height, components=components)
    check_scans(made(scans=most), width, height, LIMITS)
    with pytest.raises(TooManyScans):
        decode(made(scans=most + 1), LIMITS)


def test_progressive_jpegs_of_libjpeg_are_accepted() -> None:
    """Fifty megapixels in ten scans."""
    body = pictures.encoded(Image.new("RGB", (7_071, 7_071)), "JPEG", progressive=True)
    assert body.count(b"\xff\xda") == 10
    check_scans(body, 7_071, 7_071, LIMITS)


def test_scan_markers_in_metadata_do_not_count() -> None:
    """A thumbnail's or comment's own markers are not scans of the picture."""
    plain = pictures.encoded(pictures.corners(), "JPEG", quality=95, comment=b"\xff\xda" * 500)
    near(UPRIGHT, decode(plain, LIMITS), mean=6.0)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pictures.lying_png(b"tEXt", 2**31), id="text-2GiB"),
        pytest.param(pictures.lying_png(b"IDAT", 2**32 - 1), id="data-4GiB"),
        pytest.param(pictures.png(0, 5), id="no-width"),
        pytest.param(b"\x89PNG\r\n\x1a\n", id="signature-only"),
        pytest.param(b"GIF89a\x05", id="gif-header-cut"),
        pytest.param(b"RIFF\x00\x00\x00\x00WEBPVP8 ", id="webp-header-cut"),
        pytest.param(b"RIFF\x00\x00\x00\x00WEBPZZZZ" + bytes(30), id="webp-unknown-chunk"),
        pytest.param(b"BM" + bytes(10), id="bmp-header-cut"),
        pytest.param(b"\xff\xd8\xff\xd9", id="jpeg-empty"),
    ],
)  # fmt: skip
def test_lying_and_damaged_headers_are_unreadable(body: bytes) -> None:
    """What the header promises must be in the file."""
    with pytest.raises(ImageUnreadable):
        decode(body, LIMITS)


def test_a_header_of_34_bytes_cannot_ask_for_gigabytes() -> None:
    """The smallest WebP bomb is refused by its header: 16,383 pixels a side."""
    size = (16_382).to_bytes(3, "little") * 2
    with pytest.raises(ResolutionTooHigh):
        decode(b"RIFF\x1a\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00" + bytes(4) + size, LIMITS)


def test_messages_never_carry_a_decoders_own_words() -> None:
    """The text of a foreign exception stays out of the reply."""
    body = bytearray(pictures.encoded(pictures.photo(), "PNG"))
    body[200:300] = bytes(100)
    with pytest.raises(ImageUnreadable) as caught:
        decode(bytes(body), LIMITS)
    assert caught.value.message == "the PNG data is damaged or incomplete"
    assert caught.value.__cause__ is None

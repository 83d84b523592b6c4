"""Frames that are counted in AV1 and HEVC data, and in the items of an AVIF or HEIC."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from app.codecs.av1 import OBUS, Av1Frames
from app.codecs.boxes import ENTRIES
from app.codecs.decode import decode
from app.codecs.hevc import HevcFrames
from app.codecs.limits import PictureLimits
from app.contracts.errors import ImageUnreadable, ResolutionTooHigh
from tests.codecs import heic_samples, pictures

LIMITS = PictureLimits()
SEQUENCE, FRAME_HEADER, FRAME, REDUNDANT = 1, 3, 6, 7


def packed(*fields: tuple[int, int]) -> bytes:
    """Whole numbers of so many bits each, and ones to the end of a byte."""
    text = "".join(f"{value:0{bits}b}" for value, bits in fields if bits)
    text += "1" * (8 - len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8)


def obu(kind: int, payload: bytes) -> bytes:
    assert len(payload) < 128
    return bytes([kind << 3 | 2, len(payload)]) + payload


def sequence(width: int, height: int, *, timed: bool = False, ids: bool = False) -> bytes:
    """A sequence header that leaves nothing out, with two operating points."""
    timing = [(1, 1), (1, 32), (1, 32), (0, 1), (1, 1), (9, 5), (1, 32), (9, 5), (4, 5)]
    point = [(0, 12), (8, 5), (0, 1), *([(1, 1), (0, 21)] if timed else []), (1, 1), (9, 4)]
    size = [(15, 4), (15, 4), (width - 1, 16), (height - 1, 16)]
    numbered = [(1, 1), (3, 4), (2, 3)] if ids else [(0, 1)]
    tools = [(0, 7), (1, 1), (3, 2), (1, 1), (1, 1), (0, 40)]
    fields = [(0, 3), (0, 1), (0, 1), *(timing if timed else [(0, 1)]), (1, 1), (1, 5), *point * 2]
    return obu(SEQUENCE, packed(*fields, *size, *numbered, *tools))


def frame(kind: int = FRAME, *, own: bool, timed: bool = False, ids: bool = False) -> bytes:
    """The header of a hidden key frame, or of a timed one that is shown."""
    shown = [(1, 1), (0, 5)] if timed else [(0, 1), (1, 1), (0, 1)]
    fields = [(0, 1), (0, 2), *shown, (0, 1), (1, 1), (0, 1), (0, 8 if ids else 0), (own, 1)]
    return obu(kind, packed(*fields, (0, 40)))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("ids", [False, True])
def test_every_frame_counts_with_the_size_of_its_sequence(timed: bool, ids: bool) -> None:
    """Hidden ones, those in two parts, and copies of a header, which may be frames, too."""
    data = sequence(4_000, 3_000, timed=timed, ids=ids)
    data += b"".join(
        frame(kind, own=False, timed=timed, ids=ids) for kind in (FRAME, FRAME_HEADER, REDUNDANT)
    )
    data += sequence(64, 32) + frame(own=False) + obu(FRAME_HEADER, b"\x80") + obu(4, bytes(9))
    assert Av1Frames().of(data) == [(4_000, 3_000)] * 3 + [(64, 32)] * 2
    with pytest.raises(ImageUnreadable, match="another size than its sequence"):
        Av1Frames().of(
            sequence(64, 64, timed=timed, ids=ids) + frame(own=True, timed=timed, ids=ids)
        )


def test_a_frame_has_its_sequence_before_it() -> None:
    """Otherwise nobody knows its size; and what is cut off is damaged."""
    with pytest.raises(ImageUnreadable, match="before its sequence"):
        Av1Frames().of(frame(own=False))
    with pytest.raises(IndexError):
        Av1Frames().of(obu(SEQUENCE, sequence(64, 64)[2:12]))


def test_units_without_frames_have_a_limit() -> None:
    """Over all items: a million would take seconds to go through."""
    found = Av1Frames()
    assert found.of(b"\x12\0" * OBUS) == []
    with pytest.raises(ImageUnreadable, match="more than 65,536 AV1 units"):
        found.of(b"\x12\0")


def still(width: int, height: int, *, frames: int = 1) -> bytes:
    """A flat AVIF, the one item of which has its frame so many times."""
    body = pictures.encoded(Image.new("RGB", (width, height)), "AVIF", speed=10)
    start = body.index(b"mdat") + 4
    data = body[start:]
    assert data[:3] == b"\x12\0\x0a"
    more = data + data[4 + data[3] :] * (frames - 1)
    at = body.index(struct.pack(">L", len(data)), body.index(b"iloc"))
    head = body[:at] + struct.pack(">L", len(more)) + body[at + 4 : start - 8]
    return head + struct.pack(">L", 8 + len(more)) + b"mdat" + more


def claiming(body: bytes, width: int, height: int) -> bytes:
    at = body.index(b"ispe") + 8
    return body[:at] + struct.pack(">LL", width, height) + body[at + 8 :]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(lambda: still(64, 64, frames=300), "300 frames in an item", id="frames"),
        pytest.param(lambda: still(64, 64, frames=5), "5 frames in an item", id="fifth-layer"),
        pytest.param(
            lambda: still(4_000, 3_100, frames=4), "49,600,000 pixels so far", id="pixels"
        ),
        pytest.param(
            lambda: claiming(still(4_000, 3_000), 64, 64), "is 4000 x 3000 pixels", id="larger"
        ),
        pytest.param(lambda: claiming(still(65, 64), 64, 65), "is 65 x 64 pixels", id="wider"),
    ],
)
def test_an_avif_holds_no_more_than_it_says(make: Callable[[], bytes], says: str) -> None:
    """Neither frames beyond its layers nor any that is larger: 208 kB of hidden ones took a codec
    four seconds, for a picture that said it was 64 x 64."""
    body = make()
    with pytest.raises(ImageUnreadable, match=says):
        decode(body, LIMITS)


def test_an_avif_may_have_layers() -> None:
    """Up to four; the first that is shown is taken here."""
    assert decode(still(64, 48, frames=4), LIMITS).shape == (48, 64, 3)


def test_the_size_of_an_avif_is_limited_by_its_frames() -> None:
    """What is too large is that whatever the file says."""
    limits = PictureLimits(pixels=5_000)
    body = still(80, 80)
    with pytest.raises(ResolutionTooHigh):
        decode(body, limits)
    with pytest.raises(ImageUnreadable):
        decode(claiming(body, 64, 64), limits)


def test_the_first_frame_of_a_sequence_is_read_as_an_item() -> None:
    """Its track, the data of which nobody has counted, is not opened."""
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    body = pictures.encoded(frames[0], "AVIF", save_all=True, append_images=frames[1:])
    at = body.index(b"stsz")
    pixels = decode(body[: at + 8] + b"\0\0\0\1" + body[at + 12 :], LIMITS)
    assert np.abs(pixels[4, 4].astype(int) - [255, 0, 0]).max() < 9


@pytest.mark.parametrize("quality", [10, 60, 100])
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4", "4:0:0"])
@pytest.mark.parametrize("size", [(64, 48), (201, 151), (1, 1)])
def test_avifs_of_pillow_are_accepted(
    quality: int, subsampling: str, size: tuple[int, int]
) -> None:
    """Of several qualities, odd sizes, with and without alpha, a profile and an orientation."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for mode, more in (
        ("RGB", {}),
        ("RGBA", {"exif": exif}),
        ("RGB", {"icc_profile": bytes(400), "codec": "aom", "tile_rows": 1, "autotiling": False}),
    ):
        image = pictures.photo(*size).convert(mode)
        if mode == "RGBA":
            image.putalpha(Image.linear_gradient("L").resize(size))
        options = {"quality": quality, "subsampling": subsampling, "speed": 9} | more
        pixels = decode(pictures.encoded(image, "AVIF", **options), LIMITS)
        assert pixels.shape[:2] == (size if "exif" in more else size[::-1])


@pytest.mark.parametrize(
    ("filler", "says"),
    [
        pytest.param(b"\0\0\0\x08free" * (ENTRIES + 1), "boxes and entries", id="boxes"),
        pytest.param(b"\0\0\0\x0cmeta\0\0\0\0", "is there twice", id="second-meta"),
    ],
)
def test_boxes_are_counted_too(filler: bytes, says: str) -> None:
    """A million empty ones would take as long as a picture."""
    body = still(64, 64)
    before = time.process_time()
    with pytest.raises(ImageUnreadable, match=says):
        decode(body + filler, LIMITS)
    assert time.process_time() - before < 1.0


def test_items_have_no_more_bytes_than_the_file() -> None:
    """An extent that lies in the same place many times is as long as all of them."""
    file = io.BytesIO()
    pictures.corners().save(file, "AVIF")
    body = file.getvalue()
    at = body.index(b"iloc") + 4
    version, sizes, more, count = struct.unpack_from(">BxxxBBH", body, at)
    assert (version, sizes, more, count) == (0, 0x44, 0, 1)
    extents, start, length = struct.unpack_from(">HLL", body, at + 12)
    assert extents == 1
    grown = 8 * 99
    place = struct.pack(">LL", start + grown, length)
    changed = body[: at + 12] + struct.pack(">H", 100) + place * 100 + body[at + 22 :]
    for name in (b"iloc", b"meta"):
        where = changed.index(name) - 4
        (size,) = struct.unpack_from(">L", changed, where)
        changed = changed[:where] + struct.pack(">L", size + grown) + changed[where + 4 :]
    with pytest.raises(ImageUnreadable, match="more bytes than the file"):
        decode(changed, LIMITS)


AVIF = pictures.encoded(pictures.photo(64, 64), "AVIF", quality=50)


@pytest.mark.parametrize("kind", ["AVIF", "HEIC"])
def test_a_picture_may_be_a_grid(kind: str) -> None:
    """Of four by four tiles, as those of phones are."""
    if kind == "HEIC":
        pytest.importorskip("pi_heif", reason="NOT TESTED: the extra `heic` is not installed")
    sample = AVIF if kind == "AVIF" else heic_samples.PLAIN
    body = pictures.put_together(sample, b"grid", 16, columns=4, size=(256, 250))
    pixels = decode(body, LIMITS)
    assert pixels.shape == (250, 256, 3)
    assert np.array_equal(pixels[1:63, 1:63], pixels[65:127, 129:191])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(
            pictures.put_together(heic_samples.PLAIN, b"iovl", 400, by=b"iden"),
            "made of such as are made of others",
            id="one-picture-400-times",
        ),
        pytest.param(
            pictures.put_together(heic_samples.PLAIN, b"iovl", 13, tile=(1_000, 1_000)),
            "is made of 13,000,000 pixels; the limit is 12,004,096",
            id="heic",
        ),
        pytest.param(
            pictures.put_together(AVIF, b"grid", 13, tile=(1_000, 1_000)),
            "is made of 13,000,000 pixels; the limit is 12,004,096",
            id="avif",
        ),
    ],
)
def test_what_a_picture_is_made_of_is_counted(body: bytes, says: str) -> None:
    """By the size of each part, as often as it is opened."""
    if b"hvcC" in body:
        pytest.importorskip("pi_heif", reason="NOT TESTED: the extra `heic` is not installed")
    with pytest.raises(ImageUnreadable, match=says):
        decode(body, LIMITS)


def exp_golomb(value: int) -> tuple[int, int]:
    return value + 1, 2 * (value + 1).bit_length() - 1


def parameters(width: int, height: int, *, layers: int = 0) -> bytes:
    """A sequence parameter set, with zeros that have to be escaped."""
    general = [(0, 4), (layers, 3), (1, 1), (0, 96)]
    present = [(1, 1), (1, 1)] * layers + [(0, 2 * (8 - layers) if layers else 0)]
    size = [exp_golomb(0), exp_golomb(3), (0, 1), exp_golomb(width), exp_golomb(height)]
    plain = packed(*general, *present, *[(0, 96)] * layers, *size)
    return b"\x42\1" + plain.replace(b"\0\0", b"\0\0\3")


def configured(*units: bytes) -> bytes:
    counted = b"".join(struct.pack(">H", len(unit)) + unit for unit in units)
    return bytes(22) + b"\1\x21" + struct.pack(">H", len(units)) + counted


@pytest.mark.parametrize("layers", [0, 2])
def test_the_coded_size_of_a_heic_is_in_its_parameters(layers: int) -> None:
    """In the configuration or in the data; the largest counts."""
    found = HevcFrames()
    large, small = parameters(4_000, 3_000, layers=layers), parameters(64, 64, layers=layers)
    assert found.size(configured(small, large)) == (4_000, 3_000)
    picture = b"\0\0\0\3\x28\1\x80"
    data = struct.pack(">L", len(large)) + large + picture * 2
    assert found.of(data, [(64, 4_096)]) == [(4_000, 4_096)] * 2
    with pytest.raises(ImageUnreadable, match="more than 65,536 HEVC units"):
        found.of(bytes(4) * 65_536, [])


def heic_of(*, pictures: int = 1, parameter_set: bytes | None = None) -> bytes:
    """The sample with its coded picture so often, or with other parameters of the same length."""
    sample = heic_samples.PLAIN
    start = sample.index(b"mdat") + 4
    data = sample[start:]
    at = sample.index(struct.pack(">L", len(data)), sample.index(b"iloc"))
    more = data * pictures
    head = sample[:at] + struct.pack(">L", len(more)) + sample[at + 4 : start - 8]
    if parameter_set:
        at = head.index(b"\x42\1")
        (size,) = struct.unpack_from(">H", head, at - 2)
        head = head[:at] + parameter_set.ljust(size, b"\1") + head[at + size :]
    return head + struct.pack(">L", 8 + len(more)) + b"mdat" + more


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(heic_of(pictures=2), "2 frames in an item", id="frames"),
        pytest.param(
            heic_of(parameter_set=parameters(4_000, 3_000)), "is 4000 x 3000 pixels", id="larger"
        ),
    ],
)
def test_a_heic_holds_no_more_than_it_says(body: bytes, says: str) -> None:
    """One picture in an item, and as large as the item says, in whole blocks."""
    pytest.importorskip("pi_heif", reason="NOT TESTED: the extra `heic` is not installed")
    assert decode(heic_of(), LIMITS).shape == (32, 48, 3)
    with pytest.raises(ImageUnreadable, match=says):
        decode(body, LIMITS)

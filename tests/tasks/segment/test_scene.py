"""Backgrounds, framing and shadows through the pipeline and real codec processes."""

import io
import mmap

import numpy as np
import pytest
from PIL import Image

from paddlepool.contracts.errors import (
    ImageUnreadable,
    InputError,
    OutputTooLarge,
    ResolutionTooHigh,
    TooManyScans,
    UnsupportedMediaType,
)
from paddlepool.contracts.tensors import Array
from paddlepool.tasks.segment.request import SegmentResult
from tests.descriptors import open_descriptors
from tests.engine.fakes import wait_until
from tests.tasks.codecs import pictures, profiles
from tests.tasks.segment.serving import MAPPED, Server, bright, pixels_of, request_of, served

PICTURE = np.full((320, 320, 3), (0, 60, 200), np.uint8)
PICTURE[100:180, 120:160] = (250, 200, 0)
BODY = pictures.encoded(Image.fromarray(PICTURE), "PNG")
BACKGROUND = pictures.encoded(pictures.corners(640, 320), "PNG")


def boxed(tensor: Array) -> Array:
    """A network that finds the yellow box: top 100, left 120, height 80, width 40."""
    mask = np.zeros((1, 1, 320, 320), np.float32)
    mask[..., 100:180, 120:160] = 1.0
    return mask


def asked(
    server: Server, background: bytes | None = None, *, body: bytes = BODY, **options: str
) -> SegmentResult:
    options = {"refine": "none"} | options
    return server.run(request_of(body, options, background=background), boxed)


def test_the_foreground_stands_before_the_second_picture(server: Server) -> None:
    result = pixels_of(asked(server, BACKGROUND, output="composite"))
    expected = np.asarray(pictures.corners(640, 320))[:, 160:480].copy()
    expected[100:180, 120:160] = (250, 200, 0)
    assert np.array_equal(expected, result)


@pytest.mark.parametrize("place", ["before", "behind"])
def test_both_pictures_are_shown_in_srgb(server: Server, place: str) -> None:
    """Display P3 in a codec process, in either picture; the result has no profile."""
    colour = (180, 110, 70)
    flat = Image.new("RGB", (320, 320), colour)
    tagged = pictures.encoded(flat, "PNG", icc_profile=profiles.rgb(profiles.P3))
    body, behind = (tagged, BODY) if place == "before" else (BODY, tagged)
    result = asked(server, behind, body=body, output="composite")
    shown = pixels_of(result)[140, 140] if place == "before" else pixels_of(result)[5, 5]
    assert np.abs(profiles.in_srgb(colour, profiles.P3) - shown).max() <= 1
    assert "icc_profile" not in Image.open(io.BytesIO(result.image)).info


def test_a_contained_picture_leaves_the_colour_around_it(server: Server) -> None:
    """640 x 320 on 320 x 320: 160 rows of picture between 80 rows of colour."""
    options = {"output": "composite", "bg_fit": "contain", "bg_color": "#010203"}
    result = pixels_of(asked(server, BACKGROUND, **options))  # type: ignore[arg-type]
    assert (result[:80] == (1, 2, 3)).all()
    assert (result[240:] == (1, 2, 3)).all()
    assert result[90, 10].tolist() == [220, 20, 20]
    assert result[230, 310].tolist() == [255, 255, 255]


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_the_second_picture_is_turned_upright(server: Server, orientation: int) -> None:
    background = pictures.turned(orientation, "PNG")
    result = pixels_of(asked(server, background, output="composite"))
    assert [result[y, x].tolist() for y, x in ((5, 5), (5, 310), (310, 5), (310, 310))] == [
        [220, 20, 20],
        [20, 200, 20],
        [20, 20, 220],
        [255, 255, 255],
    ]


def test_a_crop_has_its_margin_also_beyond_the_picture(server: Server) -> None:
    """40 x 80 with 50 % around: 80 x 160; with 300 pixels on the left, 180 of them are beyond."""
    result = asked(server, crop="true", crop_margin="50%")
    assert (result.width, result.height) == (80, 160)
    cutout = pixels_of(result)
    assert (cutout[40:120, 20:60] == (250, 200, 0, 255)).all()
    assert cutout[..., 3].sum() == 40 * 80 * 255
    plain = asked(server, crop="true")
    assert (plain.width, plain.height) == (40, 80)
    assert (pixels_of(plain) == (250, 200, 0, 255)).all()
    far = asked(server, output="composite", crop="true", crop_margin="0px 0px 0px 300px")
    assert (far.width, far.height) == (340, 80)
    assert (pixels_of(far)[:, :300] == 255).all()
    assert (far.box.top, far.box.left, far.box.height, far.box.width) == (100, 120, 80, 40)


@pytest.mark.parametrize("output", ["mask", "cutout", "composite"])
def test_the_subject_is_scaled_and_placed(server: Server, output: str) -> None:
    """To all of the height, at the right: 320 x 160, to the pixel in every output."""
    result = pixels_of(asked(server, output=output, scale="100%", position="100% 0%"))
    inside = {"mask": 255, "cutout": (250, 200, 0, 255), "composite": (250, 200, 0)}[output]
    outside = {"mask": 0, "cutout": (0, 0, 0, 0), "composite": (255, 255, 255)}[output]
    assert result.shape[:2] == (320, 320)
    assert (result[2:-2, 162:-2] == inside).all()
    assert (result[:, :160] == outside).all()


def test_a_moved_subject_on_its_own_blurred_background(server: Server) -> None:
    options = {"output": "composite", "bg_blur": "2%", "position": "0% 0%"}
    result = pixels_of(asked(server, None, **options)).astype(int)  # type: ignore[arg-type]
    assert (result[:80, :40] == (250, 200, 0)).all()
    assert np.abs(result[100:180, 120:160] - (0, 60, 200)).max() <= 3


def test_a_shadow_lies_under_the_subject_and_over_the_ground(server: Server) -> None:
    """It darkens a ground, and is translucent black in a cut-out, as strong as asked for."""
    plain = pixels_of(asked(server, output="composite"))
    dark = pixels_of(asked(server, output="composite", shadow="drop"))
    assert np.array_equal(plain[100:180, 120:160], dark[100:180, 120:160])
    assert (dark[:90] == 255).all()
    assert 120 < dark[140, 160, 0] < 250
    cutout = pixels_of(asked(server, shadow="drop", shadow_opacity="100"))
    beside = cutout[140, 160]
    assert beside[:3].tolist() == [0, 0, 0]
    assert 100 < beside[3] < 255
    assert cutout[:90, :, 3].max() == 0


def test_without_a_foreground_there_is_only_the_background(server: Server) -> None:
    def network(tensor: Array) -> Array:
        return np.zeros((1, 1, 320, 320), np.float32)

    options = {
        "output": "composite",
        "crop": "true",
        "crop_margin": "50%",
        "scale": "50%",
        "shadow": "drop",
    }
    result = server.run(request_of(BODY, options, background=BACKGROUND), network)
    expected = np.asarray(pictures.corners(640, 320))[:, 160:480]
    assert np.array_equal(expected, pixels_of(result))


HOSTILE = [
    pytest.param(b"not a picture", UnsupportedMediaType, id="no-picture"),
    pytest.param(pictures.png(10_000, 6_501), ResolutionTooHigh, id="65-megapixels"),
    pytest.param(pictures.blank_png(16_385, 1), ResolutionTooHigh, id="a-long-side"),
    pytest.param(pictures.jpeg_of_empty_scans(16, 16, scans=101), TooManyScans, id="scans"),
    pytest.param(BACKGROUND[:200], ImageUnreadable, id="cut-off"),
    pytest.param(pictures.lying_png(b"IDAT", 2**32 - 1), ImageUnreadable, id="4-GiB-chunk"),
]


@pytest.mark.parametrize(("hostile", "error"), HOSTILE)
def test_a_hostile_second_picture_gets_the_errors_of_the_first(
    server: Server, hostile: bytes, error: type[InputError]
) -> None:
    before = open_descriptors(but=MAPPED)
    with pytest.raises(error) as first:
        asked(server, body=hostile)
    with pytest.raises(error) as second:
        asked(server, hostile, output="composite")
    with pytest.raises(error) as both:
        asked(server, hostile, body=hostile, output="composite")
    assert second.value.message == f"bg_image: {first.value.message}"
    assert both.value.message == f"file: {first.value.message}"
    assert (second.value.limit, second.value.received) == (first.value.limit, first.value.received)
    assert server.codecs.pictures.held == 0
    wait_until(lambda: open_descriptors(but=MAPPED) == before)


@pytest.mark.slow
def test_a_second_picture_that_takes_too_long_is_unreadable() -> None:
    """The wall limit holds for each picture by itself, and says which it was."""
    with served(wall_seconds=0.1) as server:
        slow = pictures.encoded(Image.fromarray(np.zeros((7000, 7000, 3), np.uint8)), "PNG")
        with pytest.raises(ImageUnreadable, match="bg_image: the picture took longer"):
            asked(server, slow, output="composite")


def test_both_pictures_are_held_while_the_network_runs_and_no_longer(server: Server) -> None:
    """The second is charged as it is kept: reduced to cover the first."""
    before = open_descriptors(but=MAPPED)
    large = pictures.encoded(pictures.corners(1280, 640), "PNG")
    request = request_of(BODY, {"output": "composite"}, background=large)
    expected = 320 * 320 * 3 + 640 * 320 * 3
    held: list[int] = []

    def network(tensor: Array) -> Array:
        held.append(server.codecs.pictures.held)
        return bright(tensor)

    server.run(request, network)
    assert 0 <= held[0] - expected < 2 * mmap.PAGESIZE
    assert server.codecs.pictures.held == 0
    wait_until(lambda: open_descriptors(but=MAPPED) == before)


def test_margins_cannot_make_more_than_a_picture_may_have(server: Server) -> None:
    """The limits of an upload hold for the canvas, and those of the format, before it is made."""
    wide = pictures.encoded(Image.new("RGB", (12_000, 40)), "PNG")

    def network(tensor: Array) -> Array:
        mask = np.ones((1, 1, 320, 320), np.float32)
        mask[..., :1, :1] = 0.0
        return mask

    options = {"output": "mask", "crop": "true", "crop_margin": "0px 50%"}
    with pytest.raises(OutputTooLarge, match="crop_margin is 24000 x 40") as caught:
        server.run(request_of(wide, options), network)
    assert (caught.value.limit, caught.value.received) == (16_384, 24_000)
    options = {"crop": "true", "crop_margin": "10px 18.27%"}
    with pytest.raises(OutputTooLarge, match="WebP holds"):
        server.run(request_of(wide, options | {"format": "webp"}), network)
    assert server.run(request_of(wide, options), network).width == 16_384
    assert server.lost == []


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_largest_picture_before_the_largest_background(server: Server, mode: str) -> None:
    """65 megapixels before 65 megapixels, also if both are transparent: no process is lost."""
    image, turned = pictures.photo(1000, 650), pictures.photo(650, 1000)
    kind = "JPEG" if mode == "RGB" else "PNG"
    for each in (image, turned) if mode == "RGBA" else ():
        each.putalpha(Image.linear_gradient("L").resize(each.size))
    body = pictures.encoded(image.resize((10_000, 6_500)), kind, compress_level=1)
    background = pictures.encoded(turned.resize((6_500, 10_000)), kind, compress_level=1)
    base = {"output": "composite", "format": "jpg", "shadow": "drop"}
    for options, second in (
        ({"scale": "100%", "refine": "guided"}, background),
        ({"bg_fit": "contain", "position": "0%", "bg_color": "red"}, background),
        ({"scale": "100%", "format": "png", "bg_color": "#ff000080"}, background),
        ({"bg_blur": "0.5%", "scale": "100%"}, None),
        ({"output": "cutout", "format": "png", "scale": "100%", "refine": "matting"}, None),
    ):
        result = server.run(request_of(body, base | options, background=second), boxed)
        assert (result.width, result.height) == (10_000, 6_500)
    assert server.lost == []

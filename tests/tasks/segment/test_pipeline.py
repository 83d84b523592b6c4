"""The segment pipeline over real codec processes: parity, results, memory and leaks."""

import asyncio
import contextlib
import io
import math
import mmap
import os
import time
from dataclasses import asdict, replace
from threading import Thread
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from paddlepool.contracts.errors import (
    ConfigError,
    DeadlineExceeded,
    ImageUnreadable,
    OutputTooLarge,
    PaddlepoolError,
)
from paddlepool.contracts.tensors import Array, TensorSpec
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import BLOCK_BYTES, PictureStore
from paddlepool.tasks.segment import matte, stages
from paddlepool.tasks.segment.pipeline import SegmentPipeline
from paddlepool.tasks.segment.request import SIZE_PIXELS
from tests.descriptors import open_descriptors
from tests.engine.fakes import calling, wait_until
from tests.tasks.codecs import pictures
from tests.tasks.segment.serving import (
    INFO,
    MAPPED,
    NetworkContext,
    Server,
    bright,
    pixels_of,
    request_of,
    served,
)

PHOTO = pictures.encoded(pictures.photo(200, 150), "PNG")
ONES = np.ones((1, 1, 320, 320), np.float32)


@pytest.mark.parametrize(
    ("output", "height", "size", "kept"),
    [
        pytest.param("cutout", 1600, 12_000, 3 * 2500 * 1600, id="large"),
        pytest.param("cutout", 1599, 12_000, 0, id="small"),
        pytest.param("cutout", 1600, 11_999, 0, id="header-alone"),
        pytest.param("mask", 1600, 12_000, 0, id="needs-no-pixels"),
    ],
)
def test_memory_for_a_large_picture_is_allocated_while_it_is_decoded(
    output: str, height: int, size: int, kept: int
) -> None:
    """The data are missing, so that no pixel is written. A header alone must not cost memory."""
    limits = asdict(PictureLimits())
    meta = {"limits": limits, "output": output, "refine": "none", "most_pixels": None}
    body = np.frombuffer(pictures.png(2500, height).ljust(size, b"\0"), np.uint8)
    with PictureStore(budget=1).open(1 << 24) as picture:
        with pytest.raises(ImageUnreadable):
            stages.open_picture(meta, {"body": body}, [picture.descriptor])
        blocks = os.fstat(picture.descriptor).st_blocks
    assert 0 <= blocks * BLOCK_BYTES - kept < mmap.PAGESIZE


def test_without_threads_a_large_picture_is_still_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system at its limit of processes must not make the picture look damaged."""
    network = {"size": 32, "mean": (0.5,) * 3, "std": (1.0,) * 3}
    meta = {"limits": asdict(PictureLimits()), "output": "cutout", "format": "png", "labels": False}
    body = np.frombuffer(pictures.encoded(Image.new("RGB", (2500, 1600)), "PNG"), np.uint8)
    monkeypatch.setattr(Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with PictureStore(budget=1).open(1 << 24) as picture:
        opened, _ = stages.open_picture(
            meta | {"network": network, "most_pixels": None}, {"body": body}, [picture.descriptor]
        )
    assert opened["shape"] == [1600, 2500, 3]


@pytest.mark.slow
def test_a_picture_costs_its_caller_the_pixels_it_has(server: Server) -> None:
    with calling("somebody", quota=(quota := Mock())):
        server.ask(PHOTO, size="preview")
    quota.spend.assert_called_once_with("pixels", 200 * 150)


def test_the_mask_of_a_small_picture_weighs_every_level() -> None:
    mask = np.zeros((320, 320), np.float32)
    mask[::4] = 1.0
    alpha = matte.plain_alpha(mask, 80, 80)
    assert alpha.shape == (80, 80)
    assert alpha[1:-1].min() > 48


def test_the_networks_input_is_the_official_preprocessing(server: Server) -> None:
    """Bilinear without anti-aliasing, divided by the maximum, ImageNet mean and deviation."""
    image = pictures.photo(640, 640)  # halved exactly: each value is the mean of four
    body = pictures.encoded(image, "PNG")
    received: list[Array] = []

    def network(tensor: Array) -> Array:
        received.append(tensor)
        return bright(tensor)

    server.ask(body, network)
    whole = np.asarray(image).astype(np.float64)
    small = whole.reshape(320, 2, 320, 2, 3).mean(axis=(1, 3))
    expected = (small / small.max() - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    [got] = received
    assert got.shape == (1, 3, 320, 320)
    assert got.dtype == np.float32
    # Half a level of 255, divided by the smallest deviation.
    assert np.abs(expected.transpose(2, 0, 1) - got[0]).max() < 1.1 * 0.5 / 255 / 0.224 + 0.004


@pytest.mark.parametrize("level", [0, 255, 7])
def test_a_flat_picture_and_a_flat_mask_give_finite_results(server: Server, level: int) -> None:
    """No division by zero: the tensor is finite, and a flat mask is taken as it is."""
    body = pictures.encoded(Image.new("RGB", (20, 10), (level, level, level)), "PNG")

    def network(tensor: Array) -> Array:
        assert np.isfinite(tensor).all()
        return np.full((1, 1, 320, 320), 0.25, np.float32)

    mask = pixels_of(server.ask(body, network, output="mask"))
    assert set(mask.ravel().tolist()) == {63}


@pytest.mark.parametrize("refine", ["none", "guided", "matting"])
def test_the_noise_of_a_plain_picture_is_no_subject(server: Server, refine: str) -> None:
    """What the network is sure of nowhere is not stretched to a foreground."""
    noise = 0.06 * np.random.default_rng(3).random((1, 1, 320, 320), np.float32)
    result = server.ask(PHOTO, lambda _: noise, refine=refine)
    assert not pixels_of(result).any()
    assert (result.box.width, result.box.height) == (0, 0)


@pytest.mark.parametrize("refine", ["none", "guided", "matting"])
@pytest.mark.parametrize(
    ("output", "file_format"),
    [("cutout", "png"), ("cutout", "webp"), ("mask", "png"), ("mask", "webp"),
     ("composite", "png"), ("composite", "webp"), ("composite", "jpg")],
)  # fmt: skip
def test_every_output_in_every_format(
    server: Server, output: str, file_format: str, refine: str
) -> None:
    result = server.ask(PHOTO, output=output, format=file_format, refine=refine)
    image = Image.open(io.BytesIO(result.image))
    assert image.format == {"png": "PNG", "webp": "WEBP", "jpg": "JPEG"}[file_format]
    assert (result.width, result.height) == image.size == (200, 150)
    grey = "RGB" if file_format == "webp" else "L"  # WebP has no grey
    assert image.mode == {"cutout": "RGBA", "mask": grey, "composite": "RGB"}[output]
    assert 0 <= result.confidence <= 1
    assert result.box.width > 0


def test_the_cutout_is_the_picture_under_its_mask(server: Server) -> None:
    """Colours are the picture's, alpha is the mask, and what is removed is not in the file."""
    mask = pixels_of(server.ask(PHOTO, output="mask", refine="guided"))
    cutout = pixels_of(server.ask(PHOTO, colours="original"))
    assert np.array_equal(mask, cutout[..., 3])
    assert (mask == 0).any()
    assert not cutout[mask == 0].any()
    original = np.asarray(pictures.photo(200, 150))
    assert np.array_equal(original[mask > 0], cutout[mask > 0][:, :3])


@pytest.mark.parametrize("file_format", ["png", "webp"])
def test_the_removed_background_is_not_hidden_in_the_file(server: Server, file_format: str) -> None:
    """Two pictures that differ only where the mask is zero give the same bytes."""
    rows, columns = np.mgrid[:320, :320]
    disc = (np.hypot(rows - 160, columns - 160) < 90).astype(np.float32)[None, None]
    body = {}
    mask = pixels_of(server.ask(PHOTO, lambda _: disc, output="mask"))
    for ground in (0, 255):
        pixels = np.asarray(pictures.photo(200, 150)).copy()
        pixels[mask == 0] = ground
        body[ground] = server.ask(
            pictures.encoded(Image.fromarray(pixels), "PNG"),
            lambda _: disc,
            refine="none",
            colours="original",  # estimated ones are the picture's less a share of the background
            format=file_format,
        ).image
    assert body[0] == body[255]


def test_a_composite_is_the_blend_of_picture_and_colour(server: Server) -> None:
    """alpha x picture + (1 - alpha) x colour, to within rounding."""
    alpha = pixels_of(server.ask(PHOTO, output="mask", refine="guided"))[..., None] / 255.0
    got = pixels_of(server.ask(PHOTO, output="composite", bg_color="#ff8000", colours="original"))
    original = np.asarray(pictures.photo(200, 150)).astype(float)
    assert np.abs(original * alpha + np.array([255, 128, 0]) * (1 - alpha) - got).max() <= 1.0


@pytest.mark.parametrize("output", ["cutout", "composite"])
def test_the_old_background_is_taken_out_of_the_edges(server: Server, output: str) -> None:
    """A red disc with a soft edge on green: over black, the answer shows no green."""
    rows, columns = np.mgrid[:320, :320]
    share = np.clip((90 - np.hypot(rows - 160, columns - 160)) / 12, 0, 1).astype(np.float32)
    mixed = share[..., None] * (200, 20, 20) + (1 - share[..., None]) * (20, 200, 20)
    body = pictures.encoded(Image.fromarray(np.rint(mixed).astype(np.uint8)), "PNG")
    given = {"refine": "none", "output": output}
    if output == "composite":
        given["bg_color"] = "black"

    def green(**more: str) -> float:
        got = pixels_of(server.ask(body, lambda _: share[None, None], **given, **more))
        return float(got[(share > 0.1) & (share < 0.9)][:, 1].mean())

    assert green() < 0.5 * green(colours="original")


def test_a_translucent_ground_keeps_its_translucency(server: Server) -> None:
    alpha = pixels_of(server.ask(PHOTO, output="mask", refine="guided"))
    got = pixels_of(server.ask(PHOTO, output="composite", bg_color="#0000ff80"))
    assert got[alpha == 0].tolist()[0] == [0, 0, 255, 128]
    assert (got[alpha == 255][:, 3] == 255).all()


def test_an_uploads_own_transparency_is_kept(server: Server) -> None:
    """Alpha of the result = mask x alpha of the upload; the network sees it over white."""
    image = pictures.photo(200, 150).convert("RGBA")
    holes = np.zeros((150, 200), np.uint8)
    holes[:, 100:] = 200
    image.putalpha(Image.fromarray(holes))
    seen = []

    def network(tensor: Array) -> Array:
        seen.append(tensor)
        return np.linspace(0, 1, 320 * 320, dtype=np.float32).reshape(1, 1, 320, 320)

    cutout = pixels_of(server.ask(pictures.encoded(image, "PNG"), network, refine="none"))
    assert not cutout[:, :100].any()
    assert np.abs(200 - cutout[149, 101:, 3].astype(int)).max() <= 2
    white = (1 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225]
    assert np.allclose(white, seen[0][0, :, 10, 10], atol=0.02)


def over_hidden(hidden: Array) -> bytes:
    """A disc of (0, 120, 0) on transparency that hides these colours (600, 800, 3)."""
    rows, columns = np.mgrid[:600, :800]
    inside = np.hypot(rows - 300, columns - 400) < 150
    pixels = np.dstack((np.where(inside[..., None], (0, 120, 0), hidden), 255 * inside))
    return pictures.encoded(Image.fromarray(pixels.astype(np.uint8)), "PNG")


RED = np.broadcast_to((255, 0, 0), (600, 800, 3))
NOISE = np.random.default_rng(5).integers(0, 256, (600, 800, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"size": "preview"},
        {"refine": "matting"},
        {"output": "mask", "refine": "guided"},
        {"output": "composite", "bg_blur": "2%", "size": "preview"},
        {"colours": "original", "scale": "40%"},
    ],
)
def test_colours_under_alpha_0_change_nothing(server: Server, options: dict[str, str]) -> None:
    """The same bytes for hidden red, black and noise: nobody can see them."""

    def blurred(tensor: Array) -> Array:
        rows, columns = np.mgrid[:320, :320]
        distance = np.hypot((rows - 160) / 80, (columns - 160) / 60)
        return np.clip(2.4 - 2 * distance, 0, 1).astype(np.float32)[None, None]

    red, black, noise = (
        server.ask(over_hidden(hidden), blurred, **options).image
        for hidden in (RED, RED * 0, NOISE)
    )
    assert red == black
    assert noise == black


def test_a_smaller_cutout_has_the_colours_of_the_visible_pixels(server: Server) -> None:
    """All of the disc's edge is (0, 120, 0), without the red that its transparency hides."""
    cutout = pixels_of(server.ask(over_hidden(RED), lambda _: ONES, size="preview"))
    assert np.abs(cutout[cutout[..., 3] > 0][:, :3].astype(int) - (0, 120, 0)).max() <= 1


@pytest.mark.parametrize("file_format", ["png", "webp", "jpg"])
def test_no_metadata_is_copied(server: Server, file_format: str) -> None:
    exif = Image.Exif()
    exif[0x010E] = "secret description"
    body = pictures.encoded(
        pictures.photo(), "JPEG", exif=exif, comment=b"secret comment", icc_profile=b"secret" * 30
    )
    result = server.ask(body, output="composite", format=file_format)
    assert b"secret" not in result.image
    assert not {"exif", "comment", "icc_profile"} & Image.open(io.BytesIO(result.image)).info.keys()


@pytest.mark.parametrize(
    ("threshold", "levels"), [("0", {255}), ("0.5", {0, 255}), ("1", {0, 255})]
)
def test_a_threshold_makes_the_mask_binary(
    server: Server, threshold: str, levels: set[int]
) -> None:
    photo = pictures.encoded(pictures.photo(320, 320), "PNG")  # the mask's peak stays as it is
    soft = pixels_of(server.ask(photo, output="mask"))
    hard = pixels_of(server.ask(photo, output="mask", threshold=threshold))
    assert set(hard.ravel().tolist()) == levels
    assert np.array_equal(hard == 255, soft >= float(threshold) * 255)


@pytest.mark.parametrize("size", SIZE_PIXELS)
def test_a_size_is_a_most_of_pixels(server: Server, size: str) -> None:
    """Never more than its name says, the same sides' ratio, and never enlarged."""
    body = pictures.blank_png(3000, 2000)
    result = server.ask(body, output="mask", size=size)
    most = SIZE_PIXELS[size]
    assert 0.96 * most < result.width * result.height <= most
    assert abs(1.5 - result.width / result.height) < 0.01
    small = server.ask(PHOTO, size=size)
    assert (small.width, small.height) == (200, 150)


def test_labels_are_the_masks_pixels(server: Server) -> None:
    asked = server.run(request_of(PHOTO, {"output": "mask", "threshold": "0.5"}, labels=True))
    assert asked.labels == pixels_of(asked).tobytes()
    assert server.ask(PHOTO, output="mask", threshold="0.5").labels is None


@pytest.mark.parametrize("refine", ["guided", "matting"])
def test_refinement_keeps_what_the_network_is_unsure_of(server: Server, refine: str) -> None:
    """A region at 0.25, and not an edge, stays at 0.25; the sure half stays opaque."""
    mask = np.zeros((1, 1, 320, 320), np.float32)
    mask[..., 40:160, 100:220] = 1
    mask[..., 160:280, 100:220] = 0.25
    alpha = pixels_of(server.ask(PHOTO, lambda _: mask, output="mask", refine=refine))
    assert np.abs(alpha[88:120, 75:125].astype(int) - 64).max() <= 2
    assert alpha[30:60, 75:125].min() >= 253


@pytest.mark.parametrize(("width", "height"), [(300, 200), (1201, 799)])
def test_guided_refinement_follows_the_pictures_edge(
    server: Server, width: int, height: int
) -> None:
    """A mask blurred across an edge is nearer to the truth after refinement, at any size."""
    rows, columns = np.mgrid[:height, :width]
    truth = np.hypot(rows - height / 2, columns - width / 2) < height / 3
    image = Image.fromarray(np.where(truth[..., None], 200, (30, 60, 90)).astype(np.uint8))
    body = pictures.encoded(image, "PNG")
    small = Image.fromarray(truth).convert("L").resize((80, 80)).resize((320, 320))
    coarse = np.asarray(small, np.float32)[None, None] / 255

    def error(refine: str) -> float:
        mask = pixels_of(server.ask(body, lambda _: coarse, output="mask", refine=refine))
        return float(np.abs(mask / 255.0 - truth).mean())

    assert error("guided") < 0.4 * error("none")


def test_output_limits_hold_at_the_very_pixel() -> None:
    """A colour PNG of n pixels is made, of n + 1 refused, naming a way out."""
    with served(png_pixels=100 * 50) as server:
        fits = pictures.encoded(pictures.photo(100, 50), "JPEG")
        over = pictures.encoded(pictures.photo(5001, 1), "JPEG")
        assert server.ask(fits).width == 100
        with pytest.raises(OutputTooLarge) as caught:
            server.ask(over)
        assert (caught.value.limit, caught.value.received) == (5_000, 5_001)
        assert "webp" in caught.value.message
        assert "jpg" in caught.value.message
        assert server.ask(over, output="mask").width == 5001
        mask = {"output": "mask"}
        assert server.run(request_of(fits, mask, labels=True)).labels
        with pytest.raises(OutputTooLarge, match="labels"):
            server.run(request_of(over, mask, labels=True))
        assert server.ask(over, format="webp").width == 5001


def test_a_webp_wider_than_webp_can_be_is_refused(server: Server) -> None:
    """16,384 pixels a side is our limit, 16,383 that of WebP."""
    with pytest.raises(OutputTooLarge):
        server.ask(pictures.blank_png(16_384, 8), output="mask", format="webp")
    assert server.ask(pictures.blank_png(16_383, 8), output="mask", format="webp").width == 16_383


def test_nothing_leaks_on_any_way_out(server: Server) -> None:
    async def ask(attempt: int, completed: asyncio.Event) -> None:
        body = (PHOTO, PHOTO[: len(PHOTO) // 2], b"not a picture")[attempt % 3]
        deadline = time.monotonic() + (0.0 if attempt % 5 == 0 else 60.0)

        def network(tensor: Array) -> Array:
            completed.set()
            asyncio.get_running_loop().call_soon(call.cancel)  # while its result is rendered
            return bright(tensor)

        context = NetworkContext(deadline=deadline, network=network)
        call = asyncio.create_task(server.pipeline.run(request_of(body, {}), context))
        if attempt % 4 == 0:
            await (asyncio.sleep(0) if attempt % 8 == 0 else completed.wait())
            call.cancel()
        with contextlib.suppress(asyncio.CancelledError, PaddlepoolError):
            await call

    async def ask_often() -> None:
        completed = asyncio.Event()
        await asyncio.gather(*[ask(attempt, completed) for attempt in range(60)])

    before = len(open_descriptors(but=MAPPED))
    server.awaited(ask_often())
    wait_until(lambda: len(open_descriptors(but=MAPPED)) == before)
    assert server.codecs.pictures.held == 0
    with pytest.raises(DeadlineExceeded):
        server.run(request_of(PHOTO, {}), seconds=0.0)
    with pytest.raises(ImageUnreadable):
        server.ask(PHOTO[:200])


@pytest.mark.parametrize(
    "info",
    [
        replace(INFO, inputs=(TensorSpec("input", "float32", (-1, 3, 256, 256)),)),
        replace(INFO, inputs=(TensorSpec("input", "int64", (-1, 128)),)),
        replace(INFO, outputs=(TensorSpec("logits", "float32", (-1, 6)),)),
        replace(INFO, parameters={"size": 320, "sise": 1}),
        replace(INFO, parameters={"std": [0.1, 0.0, 0.1]}),
        replace(INFO, parameters={"std": [0.1, math.inf, 0.1]}),
        replace(INFO, parameters={"mean": [0.1, math.nan, 0.1]}),
    ],
    ids=["size", "input", "output", "unknown", "zero", "infinite", "nan"],
)
def test_a_model_that_does_not_fit_the_task_is_refused(server: Server, info: Any) -> None:
    with pytest.raises(ConfigError):
        SegmentPipeline(info, codecs=server.codecs)

"""The ocr pipeline: pictures to lines, over real codec processes."""

import io
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paddlepool.contracts.errors import (
    BackendError,
    ConfigError,
    ImageUnreadable,
    InputError,
    InvalidParameter,
    ModelOutputInvalid,
    TooManyInputs,
)
from paddlepool.contracts.tensors import Array
from paddlepool.tasks.ocr.crops import crop_of, line_tensors
from paddlepool.tasks.ocr.parts import Parts
from paddlepool.tasks.ocr.pipeline import OcrPipeline
from paddlepool.tasks.ocr.reader import LINE_BYTES, padded, portions
from paddlepool.tasks.ocr.request import OcrRequest
from paddlepool.tasks.ocr.stages import reduction
from tests.tasks.ocr import serving
from tests.tasks.ocr.pages import BARS, DETECTOR, Bar, answer, encoded, page
from tests.tasks.ocr.serving import BEST, NetworksContext, Server, detect, info, served

PAGE = encoded(page())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


def near(box: object, bar: Bar, distance: int) -> bool:
    left, top, right, bottom = bar[:4]
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return bool(np.abs(np.array(box) - corners).max() <= distance)


def test_a_page_has_its_lines_in_reading_order(server: Server, tmp_path: Path) -> None:
    result, context = server.ask(info(tmp_path), PAGE)
    [found] = result.pages
    assert (found.width, found.height, found.angle) == (320, 240, 0)
    assert [line.text for line in found.lines] == ["b", "a", "a"]
    assert all(near(line.box, bar, 5) for line, bar in zip(found.lines, BARS, strict=True))
    assert all(0.9 < line.score <= 1 for line in found.lines)
    assert context.stages.keys() == {"decode", "preprocess", "postprocess"}
    assert context.shapes["detect"] == [[(1, 3, 256, 320)]]


def test_the_best_classes_alone_are_enough(server: Server, tmp_path: Path) -> None:
    result, _ = server.ask(info(tmp_path, outputs=BEST), PAGE, best=True)
    assert [line.text for line in result.pages[0].lines] == ["b", "a", "a"]
    assert result.text == "b\na\na\n"


def test_several_pictures_are_several_pages(server: Server, tmp_path: Path) -> None:
    pictures = [encoded(page([(20, 30, 180, 54, text)])) for text in "ab"]
    blank = encoded(page([]))
    result, _ = server.ask(info(tmp_path), *pictures, blank)
    assert [[line.text for line in p.lines] for p in result.pages] == [["a"], ["b"], []]
    assert result.text == "a\n\fb\n\f"


def tiff(texts: str, **options: Any) -> bytes:
    """A page for each text."""
    first, *others = [Image.fromarray(page([(20, 30, 180, 54, text)])) for text in texts]
    file = io.BytesIO()
    first.save(file, "TIFF", save_all=True, append_images=others, **options)
    return file.getvalue()


def test_the_pages_of_a_tiff_are_pages(server: Server, tmp_path: Path) -> None:
    model = info(tmp_path)
    result, context = server.ask(model, tiff("ab"), PAGE, tiff("b", compression="tiff_lzw"))
    assert result.text == "a\n\fb\n\fb\na\na\n\fb\n"
    assert len(context.shapes["detect"]) == 4
    first, _ = server.ask(model, tiff("ab"), first_page=True)
    assert first.text == "a\n"


def test_the_pages_of_a_request_are_limited(server: Server, tmp_path: Path) -> None:
    model = info(tmp_path)
    with pytest.raises(TooManyInputs, match=r"more than 64 pages") as refused:
        server.ask(model, tiff("a" * 65))
    assert refused.value.limit == 64
    with pytest.raises(TooManyInputs, match=r"^the pictures have more than 64 pages"):
        server.ask(model, tiff("a" * 64), PAGE)


def test_a_bad_page_is_named_by_its_number(server: Server, tmp_path: Path) -> None:
    model, body = info(tmp_path), tiff("ab", compression="tiff_lzw")
    body = body.replace(body[-40:], bytes(40))
    with pytest.raises(InputError, match=r"^picture 1, page 2: the file is a TIFF with samples"):
        server.ask(model, body)
    result, _ = server.ask(model, body, first_page=True)
    assert result.text == "a\n"


def test_a_bad_picture_is_named_by_its_number(server: Server, tmp_path: Path) -> None:
    model = info(tmp_path)
    with pytest.raises(ImageUnreadable, match=r"^picture 2: "):
        server.ask(model, PAGE, PAGE[:60])
    with pytest.raises(ImageUnreadable, match=r"^the PNG"):
        server.ask(model, PAGE[:60])


def test_lines_below_the_least_score_are_left_out(server: Server, tmp_path: Path) -> None:
    result, _ = server.ask(info(tmp_path), PAGE, min_score=1.0)
    [found] = result.pages
    assert len(found.lines) < 3
    assert len(found.boxes) == 3


def test_the_limit_is_the_longest_side(server: Server, tmp_path: Path) -> None:
    model = info(tmp_path, most_side=640, limit_type="min", limit=600)
    for options, shape in (
        ({}, (640, 480)),  # `min` 600 would be 800 x 600
        ({"limit": 160}, (160, 128)),
        ({"limit": 320, "limit_type": "min"}, (416, 320)),
    ):
        _, context = server.ask(model, PAGE, **options)
        assert context.shapes["detect"] == [[(1, 3, *reversed(shape))]]
    with pytest.raises(InvalidParameter, match="at most 640") as refused:
        server.ask(model, PAGE, limit=641)
    assert (refused.value.limit, refused.value.received) == (640, 641)


@pytest.mark.parametrize(
    ("size", "options", "widths", "shape"),
    [
        ((300, 40), {}, "steps", (480, 64)),
        ((40, 300), {}, "steps", (64, 480)),
        ((300, 64), {}, "steps", (288, 64)),
        ((600, 54), {"limit": 320}, "steps", (704, 64)),  # reduced, it would be 29 pixels high
        ((1200, 30), {}, "steps", (1280, 32)),  # not beyond `most_side`
        ((300, 40), {"limit": 320, "limit_type": "max"}, "steps", (288, 32)),
        ((300, 40), {}, "paddlex", (288, 32)),
    ],
)
def test_a_page_of_one_line_is_enlarged(
    server: Server,
    tmp_path: Path,
    size: tuple[int, int],
    options: dict[str, Any],
    widths: str,
    shape: tuple[int, int],
) -> None:
    """PaddleX's own input stays as it is."""
    model = info(tmp_path, most_side=1280, widths=widths)
    _, context = server.ask(model, encoded(page([], *size)), **options)
    assert context.shapes["detect"] == [[(1, 3, *reversed(shape))]]


@pytest.mark.parametrize("quarters", [0, 1])
@pytest.mark.parametrize("widths", ["steps", "paddlex"])
def test_a_photograph_is_reduced_before_it_is_read(
    server: Server,
    tmp_path: Path,
    quarters: int,
    widths: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If half of its sides is enough; its lines are where they were. PaddleX reads it whole.

    The camera may have been held upright: the file then has the picture on its side.
    """
    bars = [
        (7 * left, 7 * top, 7 * right, 7 * bottom, text) for left, top, right, bottom, text in BARS
    ]
    pixels = Image.fromarray(page(bars, 7 * 320 - 1, 7 * 240 - 3))
    exif = Image.Exif()
    exif[0x0112] = 6 if quarters else 1
    file = io.BytesIO()
    pixels.rotate(90 * quarters, expand=True).save(file, "JPEG", quality=95, exif=exif)
    held: list[int] = []

    def found_in(x: Array) -> Mapping[str, Array]:
        held.append(server.codecs.pictures.held)
        return detect(x)

    monkeypatch.setattr(serving, "detect", found_in)
    result, context = server.ask(info(tmp_path, widths=widths), file.getvalue(), limit=320)
    [found] = result.pages
    assert (found.width, found.height) == (7 * 320 - 1, 7 * 240 - 3)
    assert [line.text for line in found.lines] == ["b", "a", "a"]
    assert all(near(line.box, bar, 35) for line, bar in zip(found.lines, bars, strict=True))
    assert context.shapes["detect"] == [[(1, 3, 224, 320)]]
    assert (held[0] < pixels.width * pixels.height) is (widths == "steps")


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_size_of_a_reduced_page_is_that_of_the_whole(
    server: Server, tmp_path: Path, orientation: int
) -> None:
    """Also if both of its sides become equal; 6 and 8 lie on their side in the file."""
    pixels = Image.fromarray(page([], 1999, 2000))
    if orientation in (6, 8):
        pixels = pixels.rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    pixels.save(file, "JPEG", exif=exif)
    result, _ = server.ask(info(tmp_path), file.getvalue(), limit=320)
    assert (result.pages[0].width, result.pages[0].height) == (1999, 2000)


@pytest.mark.parametrize(
    ("height", "width", "parameters", "expected"),
    [
        (3839, 3839, {}, 1),
        (3840, 3840, {}, 2),
        (7016, 4961, {}, 2),
        (7680, 7680, {}, 4),
        (16000, 16000, {}, 8),
        (4000, 3000, {"limit_side_len": 64, "limit_type": "min"}, 1),
        (4000, 3000, {"image_shape": (480, 480)}, 1),
    ],
)
def test_by_how_much_a_page_is_reduced(
    height: int, width: int, parameters: dict[str, Any], expected: int
) -> None:
    own = {"limit_side_len": 960, "limit_type": "max", "image_shape": None, **parameters}
    operations = [("DecodeImage", {}), ("DetResizeForTest", own)]
    assert reduction(height, width, operations, 2560) == expected


def test_a_page_is_turned_upright(server: Server, tmp_path: Path) -> None:
    model = info(tmp_path)
    turned = encoded(np.ascontiguousarray(np.rot90(page(), -1)))
    result, _ = server.ask(model, turned, orientation=True)
    [found] = result.pages
    assert (found.width, found.height, found.angle) == (320, 240, 90)
    assert [line.text for line in found.lines] == ["b", "a", "a"]
    assert near(found.lines[0].box, BARS[0], 5)


def test_without_the_part_no_page_is_turned(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="part orient"):
        server.ask(info(tmp_path, orienter=False), PAGE, orientation=True)


def test_a_vertical_line_is_read_from_the_top(server: Server, tmp_path: Path) -> None:
    bars = [(40, 20, 60, 110, "a"), (40, 110, 60, 200, "b")]
    result, context = server.ask(info(tmp_path), encoded(page(bars)))
    assert [line.text for line in result.pages[0].lines] == ["ab"]
    [[(_, _, height, width)]] = context.shapes["recognise"]
    assert (height, width) == (48, 384)


@pytest.mark.parametrize("ink", [0, 255])
def test_text_on_transparency_is_read(server: Server, tmp_path: Path, ink: int) -> None:
    """Its ground is the opposite of its own colour."""
    pixels = np.zeros((240, 320, 4), np.uint8)
    pixels[30:54, 20:180] = (ink, ink, ink, 255)
    result, _ = server.ask(info(tmp_path), encoded(pixels))
    assert len(result.pages[0].boxes) == 1


def test_the_picture_shows_the_boxes(server: Server, tmp_path: Path) -> None:
    model = info(tmp_path)
    result, _ = server.ask(model, PAGE, format="png")
    assert result.image is not None
    assert result.image.startswith(b"\x89PNG")
    with pytest.raises(InvalidParameter, match="draws one page, received 2"):
        server.ask(model, PAGE, PAGE, format="png")
    with pytest.raises(InvalidParameter, match="draws one page, received 2"):
        server.ask(model, tiff("ab"), format="png")


def test_many_lines_are_cut_in_portions() -> None:
    widths = np.array([640, 320, 640, 64 * 50], np.int32)
    column = LINE_BYTES // 1280
    assert list(portions(widths, column)) == [[3], [0, 2], [1]]
    assert list(portions(widths[:0], column)) == []


def test_a_page_of_many_lines_keeps_their_order(server: Server, tmp_path: Path) -> None:
    bars = [
        (10, 20 * row + 4, 100 + 13 * row % 700, 20 * row + 16, "ba"[row % 2]) for row in range(40)
    ]
    result, context = server.ask(info(tmp_path), encoded(page(bars, 960, 820)))
    assert [line.text for line in result.pages[0].lines] == ["b", "a"] * 20
    assert len(context.shapes["recognise"]) > 1
    for call in context.shapes["recognise"]:
        assert sum(4 * int(np.prod(shape)) for shape in call) <= LINE_BYTES


def test_a_failed_portion_ends_the_reading_of_the_others(server: Server, tmp_path: Path) -> None:
    bars = [(10, 20 * row + 4, 700, 20 * row + 16, "a") for row in range(40)]

    def fail(x: Array) -> Mapping[str, Array]:
        raise ModelOutputInvalid(f"{len(x)} lines")

    context = NetworksContext(
        deadline=time.monotonic() + 60, networks={"detect": detect, "recognise": fail}
    )
    model = info(tmp_path)
    request = OcrRequest(pictures=(encoded(page(bars, 960, 820)),))
    with pytest.raises(ModelOutputInvalid):
        server.awaited(OcrPipeline(model, codecs=server.codecs).run(request, context))
    assert server.codecs.pictures.held == 0
    server.ask(model, PAGE)  # tasks that were not cancelled would go on now
    assert len(context.shapes["recognise"]) == 1


def test_lines_are_padded_in_steps_or_as_paddlex_does() -> None:
    widths = np.array([320, 700, 321, 330, 340, 350, 360, 3200], np.int32)
    assert padded(widths, "steps").tolist() == [320, 704, 320, 320, 384, 384, 384, 3200]
    assert padded(widths, "paddlex").tolist() == [360, 3200, *[360] * 5, 3200]


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize(("width", "shown"), [(384, 320), (336, 320), (320, 304), (304, 288)])
def test_a_line_is_squeezed_to_leave_a_margin(upright: bool, width: int, shown: int) -> None:
    """Its end is not cut off, and its height is not reduced."""
    bar = page([(0, 0, 200, 30, "a")], 200, 30)
    box = np.array([[(0, 0), (200, 0), (200, 30), (0, 30)]], np.int32)
    if upright:
        bar = np.ascontiguousarray(np.rot90(bar, -1))
        box = np.array([[(0, 0), (30, 0), (30, 200), (0, 200)]], np.int32)
    operations = [("RecResizeImg", {"image_shape": (3, 48, 32)})]
    tensors = line_tensors(bar, box, [width], operations, tall=48, margin=16)
    [line] = tensors[width]
    assert line.shape == (3, 48, width)
    assert np.flatnonzero(line.any((0, 1))).tolist() == list(range(shown))


def test_a_vertical_line_stays_one_if_it_is_squeezed_or_reduced() -> None:
    """Whether it is turned depends on its box in the whole page."""
    crop = crop_of(np.array([(0, 0), (21, 0), (21, 33), (0, 33)], np.int32))
    assert crop.squeezed(32, 48).is_upright
    crop = crop_of(np.array([(0, 0), (30, 0), (30, 45), (0, 45)], np.int32))
    small = crop.reduced((0.5, 0.5))
    assert (small.width, small.height, small.is_upright) == (15, 22, True)
    crop = crop_of(np.array([(0, 0), (27, 0), (27, 40), (0, 40)], np.int32))
    assert not crop.reduced((0.5, 0.5)).is_upright


@pytest.mark.parametrize(("kind", "wide"), [("steps", 128), ("paddlex", 320)])
def test_a_short_line_has_the_files_width_only_as_paddlex_does(
    server: Server, tmp_path: Path, kind: str, wide: int
) -> None:
    short = encoded(page([(20, 30, 50, 54, "a")]))
    result, context = server.ask(info(tmp_path, widths=kind), short)
    assert [line.text for line in result.pages[0].lines] == ["a"]
    assert context.shapes["recognise"] == [[(1, 3, 48, wide)]]


def test_a_wrong_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match=r"is no TextFromClasses"):
        Parts(info(tmp_path / "a", recogniser=DETECTOR))
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="expects scores"):
        Parts(info(tmp_path / "b", outputs=BEST[:1]))


def test_the_selftest_allows_what_lower_precision_changes(server: Server, tmp_path: Path) -> None:
    pipeline = OcrPipeline(info(tmp_path), codecs=server.codecs)
    assert pipeline.payload_of(PAGE) == OcrRequest(pictures=(PAGE,))
    result, _ = server.ask(info(_made(tmp_path / "again")), PAGE)
    pipeline.check(pipeline.answer_of(result), answer())
    wrong = answer()
    wrong[0]["text"] = "another text"
    far = answer([(100, 30, 180, 54, "b"), *BARS[1:]])
    for expected in (wrong, far, []):
        with pytest.raises(BackendError, match="as expected"):
            pipeline.check(pipeline.answer_of(result), expected)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory

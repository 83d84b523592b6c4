"""What a client may ask of /segment: options, colours and the Accept header."""

import pytest

from app.contracts.errors import InvalidParameter
from app.tasks.segment.options import read_colour
from app.tasks.segment.request import SegmentRequest, read_options
from app.tasks.segment.router import read_accept


def test_the_defaults_are_a_guided_full_size_png_cutout() -> None:
    assert read_options(b"x", {}) == SegmentRequest(
        body=b"x",
        output="cutout",
        format="png",
        size="full",
        refine="guided",
        crop=False,
        bg_color=(255, 255, 255, 255),
        threshold=None,
    )


def test_a_mask_is_not_refined_unless_asked() -> None:
    assert read_options(b"x", {"output": "mask"}).refine == "none"
    assert read_options(b"x", {"output": "mask", "refine": "guided"}).refine == "guided"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output": "matte"}, "cutout, mask, composite"),
        ({"format": "jpg"}, "png, webp for output=cutout"),
        ({"format": "jpg", "output": "mask"}, "png, webp for output=mask"),
        ({"crop": "yes"}, "true, false"),
        ({"refine": "closed"}, "none, guided, matting"),
        ({"threshold": "1.01"}, "1.01"),
        ({"threshold": "-0.01"}, "-0.01"),
        ({"threshold": "nan"}, "0 to 1"),
        ({"bg_color": "white"}, "output=composite"),
        ({"output": "composite", "bg_color": "#12345"}, "#rrggbb"),
        ({"output": "composite", "bg_color": "hsl(0,0%,0%)"}, "CSS"),
        ({"output": "composite", "bg_color": "#fff8", "format": "jpg"}, "translucent"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_accepted(
    options: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        read_options(b"x", options)
    assert says in caught.value.message
    assert "closed" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "colour"),
    [
        ("#f80", (255, 136, 0, 255)),
        ("#f808", (255, 136, 0, 136)),
        ("#FF8000", (255, 128, 0, 255)),
        ("#ff800040", (255, 128, 0, 64)),
        ("rebeccapurple", (102, 51, 153, 255)),
        (" White ", (255, 255, 255, 255)),
        ("transparent", (0, 0, 0, 0)),
        ("#ff", None),
        ("ff8000", None),
        ("#ggg", None),
        ("#１２３", None),
    ],
)
def test_colours_are_read_as_css_writes_them(
    text: str, colour: tuple[int, int, int, int] | None
) -> None:
    """Three, four, six and eight digits, and names; nothing else."""
    assert read_colour(text) == colour


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", (False, None)),
        ("*/*", (False, None)),
        ("application/json", (True, None)),
        ("image/webp", (False, "webp")),
        ("image/png, image/webp", (False, "png")),
        ("image/png;q=0.5, image/webp;q=0.9", (False, "webp")),
        ("image/webp;q=0.2, application/json;q=0.8", (True, "webp")),
        ("image/webp, */*;q=0.8", (False, "webp")),
        ("image/webp;q=0.1, */*;q=0.8", (False, None)),
        ("image/jpeg", (False, "jpg")),
        ("application/json;q=0", (False, None)),
        ("application/json;q=nonsense", (False, None)),
        ("image/webp," * 10_000, (False, "webp")),
    ],
)
def test_the_accept_header_chooses_json_or_a_format(
    header: str, expected: tuple[bool, str | None]
) -> None:
    """q-values count, the first of equals wins, open ranges leave the choice to us."""
    assert read_accept(header) == expected


def test_a_preferred_format_that_cannot_hold_the_output_is_passed_over() -> None:
    """Accept: image/jpeg with a cut-out gives a PNG; the parameter `format` is not overruled."""
    assert read_options(b"x", {}, preferred_format="jpg").format == "png"
    assert read_options(b"x", {"output": "composite"}, preferred_format="jpg").format == "jpg"
    assert read_options(b"x", {"format": "png"}, preferred_format="webp").format == "png"

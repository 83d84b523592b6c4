"""What a client may ask of /segment: options, background, framing, colours, the Accept header."""

from typing import Any

import pytest

from paddlepool.contracts.errors import InvalidParameter
from paddlepool.tasks.segment.request import SegmentRequest, read_colour
from paddlepool.tasks.segment.router import read_accept
from tests.tasks.segment.serving import request_of

COMPOSITE = {"output": "composite"}
CROP = {"crop": "true"}


def test_the_defaults_are_a_guided_full_size_png_cutout() -> None:
    assert request_of(b"x", {}) == SegmentRequest(
        body=b"x",
        output="cutout",
        format="png",
        size="full",
        refine="guided",
        crop=False,
        threshold=None,
    )
    assert request_of(b"x", {}).bg_color == (255, 255, 255, 255)


def test_a_mask_is_not_refined_unless_asked() -> None:
    assert request_of(b"x", {"output": "mask"}).refine == "none"
    assert request_of(b"x", {"output": "mask", "refine": "guided"}).refine == "guided"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (COMPOSITE | {"bg_blur": "0.5%"}, {"bg_blur": 0.5}),
        (CROP | {"crop_margin": "30px"}, {"crop_margin": ((30, "px"),) * 4}),
        (CROP | {"crop_margin": "10%"}, {"crop_margin": ((10, "%"),) * 4}),
        (
            CROP | {"crop_margin": "10px 5%"},
            {"crop_margin": ((10, "px"), (5, "%"), (10, "px"), (5, "%"))},
        ),
        (
            CROP | {"crop_margin": "1px,2px,3px, 500px"},
            {"crop_margin": ((1, "px"), (2, "px"), (3, "px"), (500, "px"))},
        ),
        ({"scale": "original"}, {"scale": None, "position": None}),
        ({"scale": "80%"}, {"scale": 80.0, "position": (50.0, 50.0)}),
        ({"scale": "80%", "position": "original"}, {"scale": 80.0, "position": None}),
        ({"scale": 80, "position": (0.0, 100.0)}, {"scale": 80.0, "position": (0.0, 100.0)}),
        ({"position": "center"}, {"position": (50.0, 50.0)}),
        ({"position": "0% 100%"}, {"position": (0.0, 100.0)}),
        ({"shadow": "drop"}, {"shadow_opacity": 50}),
        ({"shadow": "drop", "shadow_opacity": "100"}, {"shadow_opacity": 100}),
        ({"threshold": "0.25", "crop": "false"}, {"threshold": 0.25, "crop": False}),
        ({"threshold": 1, "crop": True}, {"threshold": 1.0, "crop": True}),
    ],
)
def test_options_become_typed_values(options: dict[str, Any], expected: dict[str, Any]) -> None:
    """As texts of a query, or as values that are typed already."""
    request = request_of(b"x", options)
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "background", "says"),
    [
        ({"output": "matte"}, None, "cutout, mask, composite, labels"),
        ({"format": "jpg"}, None, "png, webp for output=cutout"),
        ({"format": "jpg", "output": "mask"}, None, "png, webp for output=mask"),
        ({"crop": "yes"}, None, "true or false"),
        ({"refine": "closed"}, None, "none, guided, matting"),
        ({"threshold": "1.01"}, None, "1.01"),
        ({"threshold": "-0.01"}, None, "-0.01"),
        ({"threshold": "nan"}, None, "0 to 1"),
        ({"threshold": "half"}, None, "a number from 0 to 1"),
        ({"threshold": True}, None, "a number from 0 to 1"),
        ({"output": 3}, None, "cutout, mask, composite, labels"),
        (COMPOSITE | {"bg_color": 3}, None, "CSS"),
        ({"scale": True}, None, "10% to 100%"),
        (CROP | {"crop_margin": "1px" + " " * 1024}, None, "one, two"),
        ({"refine": "x" * 1025}, None, "none, guided, matting"),
        ({"position": (50.0, 101.0)}, None, "0% to 100%"),
        (CROP | {"crop_margin": ((1.5, "px"),) * 4}, None, "whole pixels"),
        ({"scale": 9}, None, "received 9"),
        ({"bg_color": "white"}, None, "output=composite"),
        (COMPOSITE | {"bg_color": "#12345"}, None, "#rrggbb"),
        (COMPOSITE | {"bg_color": "hsl(0,0%,0%)"}, None, "CSS"),
        (COMPOSITE | {"bg_color": "#fff8", "format": "jpg"}, None, "translucent"),
        ({}, b"y", "bg_image needs output=composite"),
        (COMPOSITE | {"bg_fit": "cover"}, None, "bg_fit needs bg_image"),
        (COMPOSITE | {"bg_fit": "fill"}, b"y", "cover, contain"),
        ({"bg_blur": "2%"}, None, "bg_blur needs output=composite"),
        (COMPOSITE | {"bg_blur": "2%"}, b"y", "leave out bg_image"),
        (COMPOSITE | {"bg_blur": "2"}, None, "0.5% to 10%"),
        (COMPOSITE | {"bg_blur": "0.4%"}, None, "received 0.4%"),
        (COMPOSITE | {"bg_blur": "10.1%"}, None, "received 10.1%"),
        ({"crop_margin": "10px"}, None, "crop_margin needs crop=true"),
        (CROP | {"crop_margin": "501px"}, None, "received 501px"),
        (CROP | {"crop_margin": "1.5px"}, None, "received 1.5px"),
        (CROP | {"crop_margin": "51%"}, None, "received 51%"),
        (CROP | {"crop_margin": "10"}, None, "0px to 500px"),
        (CROP | {"crop_margin": "1px 2px 3px"}, None, "received 1px 2px 3px"),
        (CROP | {"crop_margin": "1px " * 5}, None, "one, two"),
        ({"scale": "9%"}, None, "received 9%"),
        ({"scale": "nan%"}, None, "original or 10% to 100%"),
        ({"scale": "٥٠%"}, None, "original or 10% to 100%"),
        ({"position": "left"}, None, "original, center, or"),
        ({"position": "101%"}, None, "received 101%"),
        ({"position": "1% 2% 3%"}, None, "two"),
        ({"shadow": "3D"}, None, "none, drop"),
        ({"shadow": "drop", "output": "mask"}, None, "output=cutout or output=composite"),
        ({"shadow_opacity": "50"}, None, "shadow_opacity needs shadow=drop"),
        ({"shadow": "drop", "shadow_opacity": "half"}, None, "a whole number from 1 to 100"),
        ({"shadow": "drop", "shadow_opacity": "0"}, None, "received 0"),
        ({"shadow": "drop", "shadow_opacity": "101"}, None, "received 101"),
    ],
)
def test_nonsense_is_refused_with_the_limit_and_what_came(
    options: dict[str, Any], background: bytes | None, says: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        request_of(b"x", options, background=background)
    assert says in caught.value.message
    assert caught.value.parameter in {*options, "bg_image"}
    assert "in a query" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"), [("size", "110101199003078888"), ("threshold", 12345678901234567890)]
)
def test_a_refusal_repeats_no_long_number(name: str, value: Any) -> None:
    """It may be a person's. An error repeats at most 15 digits (docs/errors.md)."""
    with pytest.raises(InvalidParameter) as caught:
        request_of(b"x", {name: value})
    assert str(value) not in f"{caught.value.message} {caught.value.received}"


def test_one_number_is_a_position_in_both_directions() -> None:
    options: dict[str, Any] = {"position": 25}
    assert request_of(b"x", options).position == (25.0, 25.0)


def test_a_refusal_does_not_repeat_what_the_client_wrote() -> None:
    for name in ("refine", "bg_blur", "crop_margin", "scale", "position", "shadow_opacity"):
        options = COMPOSITE | CROP | {"shadow": "drop"} | {name: "<script>secret"}
        with pytest.raises(InvalidParameter) as caught:
            request_of(b"x", options)
        assert "secret" not in caught.value.message


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
    ],
)
def test_colours_are_read_as_css_writes_them(text: str, colour: tuple[int, int, int, int]) -> None:
    """Three, four, six and eight digits, and names."""
    assert read_colour(text) == colour


@pytest.mark.parametrize("text", ["#ff", "ff8000", "#ggg", "#１２３"])
def test_other_texts_are_no_colours(text: str) -> None:
    with pytest.raises(ValueError, match="not a colour"):
        read_colour(text)


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

"""What a client may ask of background, framing and shadow."""

from typing import Any

import pytest

from app.contracts.errors import InvalidParameter
from app.tasks.segment.request import Scene, read_options

COMPOSITE = {"output": "composite"}
CROP = {"crop": "true"}


def scene_of(options: dict[str, str], background: bytes | None = None) -> Scene:
    return read_options(b"x", options, background=background).scene


def test_nothing_asked_for_leaves_the_picture_as_it_is() -> None:
    assert scene_of({}) == Scene()
    assert read_options(b"x", {}).background is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (COMPOSITE | {"bg_blur": "0.5%"}, {"bg_blur": 0.5}),
        (CROP | {"crop_margin": "30px"}, {"margins": ((30, "px"),) * 4}),
        (CROP | {"crop_margin": "10%"}, {"margins": ((10, "%"),) * 4}),
        (
            CROP | {"crop_margin": "10px 5%"},
            {"margins": ((10, "px"), (5, "%"), (10, "px"), (5, "%"))},
        ),
        (
            CROP | {"crop_margin": "1px,2px,3px, 500px"},
            {"margins": ((1, "px"), (2, "px"), (3, "px"), (500, "px"))},
        ),
        ({"scale": "original"}, {}),
        ({"scale": "80%"}, {"scale": 80.0, "position": (50.0, 50.0)}),
        ({"scale": "80%", "position": "original"}, {"scale": 80.0}),
        ({"position": "center"}, {"position": (50.0, 50.0)}),
        ({"position": "0% 100%"}, {"position": (0.0, 100.0)}),
        ({"shadow": "none"}, {}),
        ({"shadow": "drop"}, {"shadow": 0.5}),
        ({"shadow": "drop", "shadow_opacity": "100"}, {"shadow": 1.0}),
    ],
)
def test_options_are_read_in_their_units(options: dict[str, str], expected: dict[str, Any]) -> None:
    assert scene_of(options) == Scene(**expected)


@pytest.mark.parametrize(
    ("options", "background", "says"),
    [
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
        (CROP | {"crop_margin": "1.5px"}, None, "whole pixels"),
        (CROP | {"crop_margin": "10"}, None, "0px to 500px"),
        (CROP | {"crop_margin": "1px 2px 3px"}, None, "3 values"),
        (CROP | {"crop_margin": "1px " * 5}, None, "more than 4 values"),
        ({"scale": "9%"}, None, "received 9%"),
        ({"scale": "nan%"}, None, "original or 10% to 100%"),
        ({"scale": "٥٠%"}, None, "original or 10% to 100%"),
        ({"position": "left"}, None, "original, center or 0% to 100%"),
        ({"position": "101%"}, None, "received 101%"),
        ({"position": "1% 2% 3%"}, None, "two"),
        ({"shadow": "3D"}, None, "none, drop"),
        ({"shadow": "drop", "output": "mask"}, None, "output=cutout or output=composite"),
        ({"shadow_opacity": "50"}, None, "shadow_opacity needs shadow=drop"),
        ({"shadow": "drop", "shadow_opacity": "0"}, None, "received 0"),
        ({"shadow": "drop", "shadow_opacity": "101"}, None, "received 101"),
    ],
)
def test_nonsense_is_refused_with_the_limit_and_what_came(
    options: dict[str, str], background: bytes | None, says: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        scene_of(options, background)
    assert says in caught.value.message


def test_a_refusal_does_not_repeat_what_the_client_wrote() -> None:
    for name in ("bg_blur", "crop_margin", "scale", "position", "shadow", "shadow_opacity"):
        options = COMPOSITE | CROP | {"shadow": "drop"} | {name: "<script>secret"}
        with pytest.raises(InvalidParameter) as caught:
            scene_of(options)
        assert "secret" not in caught.value.message

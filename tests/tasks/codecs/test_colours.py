"""ICC profiles: applied in every format, ignored if broken, and without effect if they are sRGB."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from paddlepool.tasks.codecs import colours
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from tests.tasks.codecs import heic_samples, pictures, profiles

LIMITS = PictureLimits()
P3, ADOBE = profiles.rgb(profiles.P3), profiles.rgb(profiles.ADOBE)
COLOUR = (180, 110, 70)


def shown(image: Image.Image, kind: str, **options: Any) -> np.ndarray:
    if kind in ("JPEG", "WEBP", "AVIF"):
        options |= {"quality": 100}
    return decode(pictures.encoded(image, kind, **options), LIMITS)[8, 8].astype(int)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize(("name", "profile"), [("P3", P3), ("ADOBE", ADOBE)])
def test_the_profile_of_every_format_is_applied(kind: str, name: str, profile: bytes) -> None:
    """Display P3 and Adobe RGB become sRGB; the colours without a profile are others."""
    image = Image.new("RGB", (16, 16), COLOUR)
    expected = profiles.in_srgb(COLOUR, getattr(profiles, name))
    got = shown(image, kind, icc_profile=profile)
    assert np.abs(expected - got).max() <= 3
    assert np.abs(got - COLOUR).max() >= 10
    assert np.abs(shown(image, kind) - COLOUR).max() <= 2


def test_the_profile_of_a_heic_is_applied() -> None:
    pytest.importorskip("pi_heif", reason="NOT TESTED: the extra `heic` is not installed")
    got = decode(heic_samples.P3, LIMITS)[8, 8]
    assert np.abs(profiles.in_srgb(COLOUR, profiles.P3) - got).max() <= 3


@pytest.mark.parametrize(
    "make",
    [
        lambda image: image.quantize(4),
        lambda image: Image.merge("RGBA", [*image.split(), Image.new("L", (16, 16), 70)]),
    ],
    ids=["palette", "alpha"],
)
def test_a_profile_applies_to_palettes_and_leaves_alpha(
    make: Callable[[Image.Image], Image.Image],
) -> None:
    image = make(Image.new("RGB", (16, 16), COLOUR))
    got = shown(image, "PNG", icc_profile=P3)
    assert np.abs(profiles.in_srgb(COLOUR, profiles.P3) - got[:3]).max() <= 1
    assert got[3:].tolist() == ([70] if image.mode == "RGBA" else [])


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_a_profile_of_grey_applies_to_grey(mode: str) -> None:
    """Linear grey: a fifth of the light is 123.5 in sRGB, also in 16 bits."""
    levels: dict[str, int | tuple[int, int]] = {"L": 51, "LA": (51, 9), "I;16": 51 * 257}
    got = shown(Image.new(mode, (16, 16), levels[mode]), "PNG", icc_profile=profiles.grey(1.0))
    assert np.abs(123.5 - got[:3]).max() <= 0.5
    assert got[3:].tolist() == [9] * (mode == "LA")


INKS = [(100.0, 0.0, 0.0)] + [(60 - 4 * number, 40 - 5.0 * number, 30.0) for number in range(15)]
INKS[-1] = (0.0, 0.0, 0.0)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_the_profile_of_a_press_applies_to_cmyk(kind: str) -> None:
    """Full magenta and yellow is the sixth combination of inks, not the red of a screen."""
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    got = shown(image, kind, icc_profile=profiles.cmyk(INKS))
    assert np.abs(profiles.lab_in_srgb(INKS[6]) - got).max() <= 3
    assert np.abs(shown(image, kind) - (255, 0, 0)).max() <= 2


@pytest.mark.parametrize(
    ("mode", "profile"),
    [
        ("RGB", b"no profile" * 20),
        ("RGB", P3[:200]),
        ("RGB", P3[:128] + b"\xff" * (len(P3) - 128)),
        ("RGB", P3 + bytes(colours.PROFILE_BYTES)),
        ("RGB", profiles.grey(1.0)),
        ("RGB", profiles.cmyk(INKS)),
        ("L", P3),
        ("CMYK", P3),
    ],
    ids=["noise", "cut", "tags", "large", "grey", "press", "for-grey", "for-press"],
)
def test_a_profile_that_cannot_be_used_is_ignored(mode: str, profile: bytes) -> None:
    """The picture is read as if it had none."""
    image = pictures.photo().convert(mode)
    plain = decode(pictures.encoded(image, "TIFF"), LIMITS)
    assert np.array_equal(
        plain, decode(pictures.encoded(image, "TIFF", icc_profile=profile), LIMITS)
    )


@pytest.mark.parametrize("size", [2 << 20, 5 << 20])
def test_a_png_with_a_large_profile_is_read(size: int) -> None:
    """Pillow alone calls it damaged from 1 MiB on."""
    image = pictures.photo().convert("RGB")
    large = pictures.encoded(image, "PNG", icc_profile=bytes(size))
    assert np.array_equal(decode(large, LIMITS), np.asarray(image))


def test_profiles_of_srgb_change_nothing() -> None:
    """That of LittleCMS, and one with the curve of a display, which is nearly the same."""
    body = pictures.encoded(pictures.photo(), "PNG")
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    tagged = pictures.encoded(pictures.photo(), "PNG", icc_profile=srgb)
    assert np.array_equal(decode(body, LIMITS), decode(tagged, LIMITS))
    gamma = pictures.encoded(pictures.photo(), "PNG", icc_profile=profiles.rgb(profiles.SRGB))
    assert not np.array_equal(decode(body, LIMITS), decode(gamma, LIMITS))


def test_a_transparent_colour_is_one_of_the_files_own() -> None:
    """It is compared before the profile is applied."""
    image = Image.new("RGB", (16, 16), COLOUR)
    image.putpixel((0, 0), (1, 2, 3))
    body = pictures.encoded(image, "PNG", transparency=(1, 2, 3), icc_profile=P3)
    pixels = decode(body, LIMITS)
    assert pixels[0, 0].tolist() == [255, 255, 255, 0]
    assert np.abs(profiles.in_srgb(COLOUR, profiles.P3) - pixels[8, 8, :3]).max() <= 1


@pytest.mark.nightly
@settings(max_examples=400, deadline=None)
@given(
    data=st.data(),
    made=st.sampled_from([("RGB", P3), ("L", profiles.grey(1.8)), ("CMYK", profiles.cmyk(INKS))]),
)
def test_mutants_of_profiles_are_applied_or_ignored(
    data: st.DataObject, made: tuple[str, bytes]
) -> None:
    """Whatever a profile holds, the picture has its size."""
    mode, profile = made
    body = bytearray(profile)
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=6)):
        body[at] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
    image = pictures.photo().convert(mode)
    file = pictures.encoded(image, "TIFF", icc_profile=bytes(body))
    assert decode(file, LIMITS).shape == (48, 64, 3)

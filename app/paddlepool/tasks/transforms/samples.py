"""Sample pictures for models with an `inference.yml`. Only offline commands use them."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from paddlepool.contracts.errors import ConfigError
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import Pixels
from paddlepool.tasks.transforms.config import BoxesFromMap, InferenceConfig, TextFromClasses

PHOTOGRAPHS = Path(__file__).parents[2] / "web" / "samples"
PAPER, INK = (250, 249, 246), (30, 30, 36)
TEXT = (
    "the quick brown fox jumps over a lazy dog while Paddlepool reads 1234567890 printed lines of "
    "text from pages, receipts and signs: TOTAL 42.50 EUR, invoice No. 2026/0815, (c) page 7 of 9"
)
PAGES = ((672, 960), (320, 480))
"""Width and height of the sample pages, in pixels: a page of A4 and a receipt."""
LINES = (20, 44)
"""Numbers of characters of the sample lines."""


class Sample(NamedTuple):
    """A picture (height, width, 3 or 4), and the name under which results are shown."""

    name: str
    picture: Pixels


def sample_pictures(config: InferenceConfig) -> list[Sample]:
    """Return pictures of the kind that the model expects: pages, lines of text or photographs."""
    if isinstance(config.postprocess, BoxesFromMap):
        return [Sample(f"page of {wide} x {high}", page(wide, high)) for wide, high in PAGES]
    if isinstance(config.postprocess, TextFromClasses):
        return [Sample(f"line of {count} characters", line(count)) for count in LINES]
    return read_pictures([PHOTOGRAPHS / "cat.jpg", PHOTOGRAPHS / "hopper.jpg"])


def read_pictures(files: Sequence[Path]) -> list[Sample]:
    """Read a picture from each file.

    Raises ConfigError if a file cannot be read, and InputError if it is no usable picture.
    """
    try:
        return [Sample(path.name, decode(path.read_bytes(), PictureLimits())) for path in files]
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error


def page(width: int, height: int) -> Pixels:
    """Return a page of printed words (height, width, 3); equal sizes give equal pages."""
    image = Image.new("RGB", (width, height), PAPER)
    draw, words, random = ImageDraw.Draw(image), TEXT.split(), Random(width)  # noqa: S311  not for security
    size, margin = max(12, width // 28), width // 14
    font, top = ImageFont.load_default(size), margin
    while top + size < height - margin:
        text = random.choice(words)
        while True:
            longer = f"{text} {random.choice(words)}"
            if font.getlength(longer) > width - 2 * margin:
                break
            text = longer
        draw.text((margin, top), text, INK, font)
        top += 2 * size
    return np.asarray(image)


def line(characters: int) -> Pixels:
    """Return TEXT, cut to a number of characters, as a printed line (height, width, 3)."""
    font = ImageFont.load_default(32)
    text = TEXT[:characters]
    left, top, right, bottom = (round(side) for side in font.getbbox(text))
    image = Image.new("RGB", (right - left + 8, bottom - top + 8), PAPER)
    ImageDraw.Draw(image).text((4 - left, 4 - top), text, INK, font)
    return np.asarray(image)

"""`Codecs.read_picture`: a picture to the arrays of a task's own function, in a codec process."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paddlepool.contracts.caller import CALLER, Caller
from paddlepool.contracts.errors import ImageUnreadable, TextTooLong
from paddlepool.contracts.ports import RequestContext
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.picture import PictureStore, Pixels, opaque
from paddlepool.tasks.codecs.pool import CodecPool, Codecs, check_read
from tests.tasks.codecs.pictures import encoded

pytestmark = pytest.mark.slow

MEAN = "tests.tasks.codecs.means:mean"


class Context(RequestContext):
    async def infer(self, jobs: Sequence[Tensors], *, part: str = "") -> list[Tensors]:
        raise NotImplementedError


class Spent:
    def __init__(self) -> None:
        self.amounts: list[tuple[str, int]] = []

    def spend(self, what: str, amount: int) -> None:
        self.amounts.append((what, amount))


@pytest.fixture
async def codecs() -> AsyncIterator[Codecs]:
    pool = CodecPool(count=1)
    pool.start()
    yield Codecs(pool=pool, pictures=PictureStore(budget=1 << 30))
    await pool.close()


async def test_a_picture_becomes_the_arrays_of_a_function(codecs: Codecs) -> None:
    context = Context(deadline=time.monotonic() + 30)
    quota = Spent()
    token = CALLER.set(Caller(quota=quota))
    pixels = np.zeros((4, 6, 4), np.uint8)
    pixels[..., 0], pixels[..., 3] = 255, 51  # red, a fifth of it opaque
    body = encoded(Image.fromarray(pixels), "png")
    arrays = await codecs.read_picture(body, MEAN, {"factor": 2}, context)
    CALLER.reset(token)
    assert arrays["mean"].tolist() == [[510.0, 408.0, 408.0]]
    assert quota.amounts == [("pixels", 24)]
    assert context.stages.keys() == {"decode", "preprocess"}
    with pytest.raises(ImageUnreadable):
        await codecs.read_picture(body[:-30], MEAN, {"factor": 1}, context)
    with pytest.raises(TextTooLong, match="its own error"):
        await codecs.read_picture(body, MEAN, {"factor": 0}, context)


@pytest.mark.parametrize(
    "reply",
    [
        {"pixels": 0},
        {"pixels": -4},
        {"pixels": 11},
        {"pixels": 1.0},
        {"seconds": {"decode": float("nan"), "preprocess": 0.0}},
        {"seconds": {"decode": 0.0}},
        {"more": 1},
    ],
    ids=str,
)
def test_a_reply_that_is_none_is_refused(reply: Mapping[str, Any]) -> None:
    call = {"limits": {"pixels": 10}}
    sound = {"pixels": 10, "seconds": {"decode": 0.0, "preprocess": 1.0}}
    check_read(call, sound, {})
    with pytest.raises(ValueError, match=r"expected|pixels"):
        check_read(call, {**sound, **reply}, {})


def test_transparency_is_shown_over_white() -> None:
    """Every colour with every alpha, in more than one band of rows."""
    pixels = np.empty((512, 512, 4), np.uint8)
    pixels[..., :3] = (np.arange(512) // 2)[:, None, None]
    pixels[..., 3] = np.arange(512) // 2
    exact = pixels[..., :3] * (pixels[..., 3:] / 255) + (255 - pixels[..., 3:].astype(float))
    shown: Pixels = opaque(pixels)
    assert np.abs(shown - exact).max() <= 0.51
    plain = pixels[..., :3].copy()
    assert opaque(plain) is plain

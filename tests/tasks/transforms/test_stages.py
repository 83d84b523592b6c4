"""The chain of operations on one picture, and what becomes of odd pictures."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import ImageUnreadable, ResolutionTooHigh
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.classify.pipeline import NETWORK_INPUT
from paddlepool.tasks.codecs.encode import encode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import opaque
from paddlepool.tasks.codecs.pool import READ_PICTURE, CodecPool
from paddlepool.tasks.codecs.reading import read_picture
from paddlepool.tasks.transforms.boxes import boxes_from_map
from paddlepool.tasks.transforms.config import read_inference_config
from paddlepool.tasks.transforms.stages import prepare
from tests.tasks.transforms.test_config import CLASSIFIER, DETECTOR, RECOGNISER

LIMITS = asdict(PictureLimits())


def test_a_picture_becomes_a_tensor_with_the_size_of_the_picture() -> None:
    red = np.full((90, 120, 3), (255, 0, 0), np.uint8)
    values = {"operations": read_inference_config(DETECTOR).as_meta(), "shape": None}
    reply, arrays = read_picture(
        {"limits": LIMITS, "function": NETWORK_INPUT, "values": values},
        {"body": encode(red, format="png")},
        (),
    )
    assert (arrays["size"].tolist(), reply["pixels"]) == ([90, 120], 10800)
    assert arrays["input"].shape == (1, 3, 96, 128)
    assert arrays["input"].dtype == np.float32
    # The model gets BGR, so that red is the last channel.
    expected = (np.array([0, 0, 1]) - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    pixel = arrays["input"][0, :, 50, 50].astype(np.float64)
    assert np.abs(pixel - expected).max() < 1e-5


def test_transparency_is_placed_on_the_ground() -> None:
    pixels = np.zeros((2, 3, 4), np.uint8)
    pixels[0, :, 3] = (255, 128, 0)
    assert opaque(pixels)[0, :, 0].tolist() == [0, 127, 255]
    assert opaque(pixels, ground=0).max() == 0
    plain = np.zeros((2, 3, 3), np.uint8)
    assert opaque(plain) is plain


@pytest.mark.parametrize(
    ("height", "width", "shape"), [(48, 100, 320), (48, 400, 400), (10, 3000, 3200), (1, 1, 320)]
)
def test_a_line_has_a_least_and_a_largest_width(height: int, width: int, shape: int) -> None:
    line = np.full((height, width, 3), 255, np.uint8)
    tensor = prepare(line, read_inference_config(RECOGNISER).as_meta())
    assert tensor.shape == (1, 3, 48, shape)
    assert tensor[0, 0, 0, 0] == 1.0


def test_a_picture_that_is_too_small_for_the_crop_is_refused() -> None:
    [_, crop, *_] = read_inference_config(CLASSIFIER).as_meta()
    with pytest.raises(ImageUnreadable, match="at least 224 x 224 pixels; the picture has 300 x 9"):
        prepare(np.zeros((9, 300, 3), np.uint8), [crop])
    square = ("CenterCrop", {"target_size": 224, "do_round": True})
    with pytest.raises(ImageUnreadable, match="the picture has 223 x 224"):
        prepare(np.zeros((224, 223, 3), np.uint8), [square])


def test_a_picture_that_becomes_too_large_is_refused() -> None:
    """A strip of one pixel would be enlarged by 256 in both directions."""
    operations = read_inference_config(CLASSIFIER).as_meta()
    with pytest.raises(ResolutionTooHigh, match="the limit is 16,000,000"):
        prepare(np.zeros((1, 1000, 3), np.uint8), operations)


def boxes(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Any:
    """A stage of a task that finds text."""
    probabilities = np.asarray(arrays["map"], np.float32)
    corners, scores = boxes_from_map(probabilities, **meta)
    return {"scores": scores}, {"corners": corners}


async def test_the_operations_run_in_a_confined_process() -> None:
    pool = CodecPool(count=1, warm_ups=("paddlepool.tasks.classify.stages:warm_up",))
    pool.start()
    try:
        values = {"operations": read_inference_config(CLASSIFIER).as_meta(), "shape": None}
        meta = {"limits": LIMITS, "function": NETWORK_INPUT, "values": values}
        body = encode(np.zeros((300, 400, 3), np.uint8), format="jpg")
        arrays = {"body": np.asarray(body)}
        deadline = time.monotonic() + 60
        opened = await pool.submit(READ_PICTURE, meta, arrays, deadline=deadline)
        assert opened.arrays["size"].tolist() == [300, 400]
        assert opened.arrays["input"].shape == (1, 3, 224, 224)
        page = np.zeros((64, 64), np.float32)
        page[20:40, 10:50] = 0.9
        config = read_inference_config(DETECTOR)
        how = {"height": 128, "width": 64, **config.postprocess.model_dump()}
        found = await pool.submit(f"{__name__}:boxes", how, {"map": page}, deadline=deadline)
        assert found.arrays["corners"].shape == (1, 4, 2)
        assert found.meta["scores"] == [pytest.approx(0.9)]
    finally:
        await pool.close()

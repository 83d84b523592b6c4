"""Tests of the task without a server and without a model."""

import asyncio
import pkgutil
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from paddlepool.codec import Tensors
from paddlepool.plugin import (
    Codecs,
    RequestContext,
    ServedModelInfo,
    TensorSpec,
    Workers,
    errors,
)
from two_models.crop import Box, cropped, subject_box
from two_models.picture import two_sizes
from two_models.task import TASK, Subject, TwoModelsPipeline

WHITE = np.full((40, 80, 3), 255, np.uint8)
BLUE = WHITE.copy()
BLUE[10:20, 20:60] = (0, 0, 255)
BOX = Box(left=0.25, top=0.25, right=0.75, bottom=0.5)


def model(name: str, side: int, output: tuple[int, ...]) -> ServedModelInfo:
    return ServedModelInfo(
        name=name,
        version=1,
        directory=Path(),
        inputs=(TensorSpec("picture", "float32", (-1, 3, side, side)),),
        outputs=(TensorSpec("logits", "float32", (-1, *output)),),
    )


INFO = ServedModelInfo(
    name="two-models",
    version=1,
    directory=Path(),
    inputs=(),
    outputs=(),
    parameters={"labels": ["red", "green", "blue"]},
    parts={"find": model("subject", 16, (1, 16, 16)), "classify": model("colour", 8, (3,))},
)


class FakeCodecs:
    """Runs the function in this process, on the picture `pixels`."""

    def __init__(self, pixels: Any) -> None:
        self._pixels = pixels

    async def read_picture(
        self, body: bytes, function: str, values: Mapping[str, Any], context: RequestContext
    ) -> Tensors:
        arrays: Tensors = pkgutil.resolve_name(function)(self._pixels, values)
        return arrays


class FakeContext(RequestContext):
    """Two models: one finds what is not white, the other returns the means of the colours."""

    async def infer(self, jobs: Sequence[Tensors], *, part: str = "") -> list[Tensors]:
        pictures = [job["picture"] for job in jobs]
        if part == "find":
            return [{"logits": 2.5 - picture.sum(axis=1, keepdims=True)} for picture in pictures]
        return [{"logits": picture.mean(axis=(2, 3))} for picture in pictures]


def pipeline_on(pixels: Any) -> TwoModelsPipeline:
    codec = cast(Codecs, FakeCodecs(pixels))
    return TwoModelsPipeline(INFO, Workers(codec=codec, text=ThreadPoolExecutor(1)))


def answer(pixels: Any) -> list[Subject]:
    context = FakeContext(deadline=time.monotonic() + 10)
    return asyncio.run(pipeline_on(pixels).run(b"a picture", context))


def test_a_picture_is_made_in_both_sizes() -> None:
    arrays = two_sizes(WHITE, {"whole": 16, "detail": 32})
    assert {name: array.shape for name, array in arrays.items()} == {
        "whole": (1, 3, 16, 16),
        "detail": (1, 3, 32, 32),
    }
    assert {(str(array.dtype), float(array.min())) for array in arrays.values()} == {
        ("float32", 1.0)
    }


def test_the_box_holds_all_places_of_the_subject() -> None:
    logits = np.full((1, 1, 4, 8), -1.0, np.float32)
    assert subject_box(logits) is None
    logits[0, 0, 1, 2:6] = 1.0
    assert subject_box(logits) == BOX


def test_the_crop_is_what_is_in_the_box() -> None:
    detail = two_sizes(BLUE, {"whole": 8, "detail": 64})["detail"]
    crop = cropped(detail, BOX, 8)
    assert crop.shape == (1, 3, 8, 8)
    assert crop.mean(axis=(0, 2, 3)).tolist() == [0.0, 0.0, 1.0]


def test_a_request_runs_both_models() -> None:
    assert answer(BLUE) == [Subject(box=BOX, label="blue")]


def test_a_picture_without_a_subject_needs_one_model() -> None:
    assert answer(WHITE) == []


def test_the_sample_request_gets_its_answer() -> None:
    pipeline = pipeline_on(BLUE)
    assert pipeline.payload_of(b"a picture") == b"a picture"
    stored = pipeline.answer_of(answer(BLUE))
    pipeline.check(stored, stored)
    with pytest.raises(errors.BackendError, match=r"the answer is \[\]"):
        pipeline.check([], stored)


@pytest.mark.parametrize(
    ("part", "wrong", "message"),
    [
        ("find", replace(model("subject", 16, (1, 16, 16)), inputs=()), "subject: expected one"),
        ("classify", model("colour", 8, (4,)), "two-models: 3 labels for outputs"),
    ],
)
def test_a_part_with_other_tensors_is_refused(
    part: str, wrong: ServedModelInfo, message: str
) -> None:
    info = replace(INFO, parts={**INFO.parts, part: wrong})
    with pytest.raises(errors.ConfigError, match=message):
        TASK.build(info, Workers(codec=cast(Codecs, None), text=ThreadPoolExecutor(1)))


def test_the_package_declares_the_task() -> None:
    text = Path(__file__).with_name("pyproject.toml").read_text("utf-8")
    [(name, module)] = tomllib.loads(text)["project"]["entry-points"]["paddlepool.tasks"].items()
    assert name == "two-models"
    assert pkgutil.resolve_name(f"{module}:TASK") is TASK

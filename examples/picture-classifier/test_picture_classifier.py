"""Tests of the task without a server and without a model."""

import asyncio
import pkgutil
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from picture_classifier.picture import network_input
from picture_classifier.task import TASK, PictureClassifierPipeline, best_labels

RED = np.full((30, 40, 3), (255, 0, 0), np.uint8)
INFO = ServedModelInfo(
    name="colours",
    version=1,
    directory=Path(),
    inputs=(TensorSpec("picture", "float32", (-1, 3, 8, 8)),),
    outputs=(TensorSpec("logits", "float32", (-1, 2)),),
    parameters={"size": 8, "labels": ["red", "blue"]},
)


class FakeCodecs:
    """Runs the function in this process, on a red picture."""

    async def read_picture(
        self, body: bytes, function: str, values: Mapping[str, Any], context: RequestContext
    ) -> Tensors:
        arrays: Tensors = pkgutil.resolve_name(function)(RED, values)
        return arrays


class FakeContext(RequestContext):
    """A model whose logits are the means of red and blue."""

    async def infer(self, jobs: Sequence[Tensors], *, part: str = "") -> list[Tensors]:
        return [{"logits": job["picture"].mean(axis=(2, 3))[:, ::2]} for job in jobs]


def workers() -> Workers:
    return Workers(codec=cast(Codecs, FakeCodecs()), text=ThreadPoolExecutor(1))


def test_a_picture_becomes_the_networks_input() -> None:
    array = network_input(RED, {"size": 8, "input": "picture"})["picture"]
    assert array.shape == (1, 3, 8, 8)
    assert array.dtype == np.float32
    assert array.mean(axis=(0, 2, 3)).tolist() == [1.0, 0.0, 0.0]


def test_labels_come_best_first() -> None:
    labels = best_labels(np.array([[0.0, 2.0, 1.0]], np.float32), ["a", "b", "c"])
    assert [label.label for label in labels] == ["b", "c", "a"]
    assert sum(label.score for label in labels) == pytest.approx(1.0)


def test_a_request_is_answered() -> None:
    pipeline = PictureClassifierPipeline(INFO, workers())
    context = FakeContext(deadline=time.monotonic() + 10)
    labels = asyncio.run(pipeline.run(b"a picture", context))
    assert [label.label for label in labels] == ["red", "blue"]


def test_a_model_of_another_shape_is_refused() -> None:
    info = ServedModelInfo(
        name="other",
        version=1,
        directory=Path(),
        inputs=INFO.inputs,
        outputs=INFO.outputs,
        parameters={"size": 8, "labels": ["red", "green", "blue"]},
    )
    with pytest.raises(errors.ConfigError, match="other: expected an input"):
        TASK.build(info, workers())


def test_the_package_declares_the_task() -> None:
    text = Path(__file__).with_name("pyproject.toml").read_text("utf-8")
    [(name, module)] = tomllib.loads(text)["project"]["entry-points"]["paddlepool.tasks"].items()
    assert name == "picture-classifier"
    assert pkgutil.resolve_name(f"{module}:TASK") is TASK

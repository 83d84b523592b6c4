"""Tests of the task without a server and without a model."""

import asyncio
import pkgutil
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from paddlepool.plugin import (
    Codecs,
    RequestContext,
    ServedModelInfo,
    Tensors,
    TensorSpec,
    Workers,
    errors,
)
from text_tagger.scripts import shares, tags_of
from text_tagger.task import TASK, TaggerPipeline

NAMES = ("han", "kana", "hangul", "cyrillic", "latin")


def info(*tags: str) -> ServedModelInfo:
    return ServedModelInfo(
        name="scripts",
        version=1,
        directory=Path(),
        inputs=(TensorSpec("shares", "float32", (-1, 5)),),
        outputs=(TensorSpec("logits", "float32", (-1, 5)),),
        parameters={"tags": tags},
    )


class FakeContext(RequestContext):
    """A model that takes a script with a fifth of the letters as a tag."""

    async def infer(self, jobs: Sequence[Tensors], *, part: str = "") -> list[Tensors]:
        return [{"logits": job["shares"].astype(np.float32) * 20 - 4} for job in jobs]


WORKERS = Workers(codec=cast(Codecs, None), text=ThreadPoolExecutor(1))


def test_the_input_is_the_share_of_each_script() -> None:
    assert shares("今天 hi").tolist() == [[0.5, 0.0, 0.0, 0.0, 0.5]]
    with pytest.raises(errors.TextEmpty, match="no letter"):
        shares("12 !")


def test_tags_come_best_first() -> None:
    tags = tags_of(np.array([[1.0, -1.0, 3.0]], np.float32), ["a", "b", "c"])
    assert [tag.name for tag in tags] == ["c", "a"]
    with pytest.raises(errors.ModelOutputInvalid, match=r"shape \[1, 3\]"):
        tags_of(np.zeros((1, 3), np.float32), ["a"])


def test_a_request_is_answered() -> None:
    pipeline = TaggerPipeline(info(*NAMES), WORKERS)
    context = FakeContext(deadline=time.monotonic() + 10)
    tags = asyncio.run(pipeline.run("今天 hello", context))
    assert [tag.name for tag in tags] == ["latin", "han"]
    assert context.stages.keys() == {"preprocess", "postprocess"}


def test_a_model_with_other_tags_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="scripts: 1 tags for 5 scripts"):
        TASK.build(info("han"), WORKERS)


def test_the_package_declares_the_task() -> None:
    text = Path(__file__).with_name("pyproject.toml").read_text("utf-8")
    [(name, module)] = tomllib.loads(text)["project"]["entry-points"]["paddlepool.tasks"].items()
    assert name == "tagger"
    assert pkgutil.resolve_name(f"{module}:TASK") is TASK

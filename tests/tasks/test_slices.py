"""The kinds of answers by which the agreement of two versions is also counted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import load_tasks, slices_of

MASK = {"size": 16, "mean": [0.5] * 3, "std": [0.5] * 3}
LABELS = {"labels": ["sad", "happy"], "size": 16}
TEXT = {"labels": ["sad", "happy"], "buckets": [8], "max_tokens": 8, "pad_id": 0}


def info(
    pipeline: str | None, parameters: Mapping[str, Any], outputs: TensorSpec
) -> ServedModelInfo:
    inputs: tuple[TensorSpec, ...] = (TensorSpec("x", "float32", (-1, 3, 16, 16)),)
    if pipeline == "sentiment":
        names = ("input_ids", "attention_mask")
        inputs = tuple(TensorSpec(name, "int64", (-1, -1)) for name in names)
    return ServedModelInfo(
        name="m",
        version=1,
        directory=Path("/nowhere"),
        inputs=inputs,
        outputs=(outputs,),
        parameters=parameters,
        pipeline=pipeline,
    )


def mask(share: float) -> np.ndarray[Any, Any]:
    covered = np.zeros(100, np.float32)
    covered[: round(100 * share)] = 1.0
    return covered.reshape(1, 10, 10)


@pytest.mark.parametrize(
    ("pipeline", "parameters", "shape", "rows", "names"),
    [
        ("sentiment", TEXT, (-1, 2), [[0.1, 0.9], [2.0, 1.0]], ["happy", "sad"]),
        ("classify", LABELS, (-1, 2), [[0.1, 0.9], [0.8, 0.2]], ["happy", "sad"]),
        ("classify", {"size": 16}, (-1, 2), [[0.1, 0.9], [0.8, 0.2]], ["1", "0"]),
        (
            "segment",
            MASK,
            (-1, 1, 10, 10),
            [mask(0), mask(0.04), mask(0.2), mask(0.5), mask(0.9)],
            ["empty", "up to 5 %", "up to 25 %", "up to 50 %", "above 50 %"],
        ),
    ],
)
def test_each_row_has_a_name(
    pipeline: str,
    parameters: Mapping[str, Any],
    shape: tuple[int, ...],
    rows: list[Any],
    names: list[str],
) -> None:
    tasks = load_tasks(PIPELINES)
    slices = slices_of(info(pipeline, parameters, TensorSpec("y", "float32", shape)), tasks=tasks)
    assert slices is not None
    assert slices({"y": np.array(rows, np.float32)}) == names


def test_tensors_alone_have_no_kinds() -> None:
    tasks = load_tasks(PIPELINES)
    assert slices_of(info(None, {}, TensorSpec("y", "float32", (-1, 2))), tasks=tasks) is None

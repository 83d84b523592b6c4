"""The runs before READY."""

from __future__ import annotations

import pytest

from app.contracts.errors import ConfigError
from app.contracts.tensors import TensorSpec
from app.repository.config import ModelConfig
from app.repository.shapes import warmup_inputs

SPECS = (TensorSpec("ids", "int64", (-1, -1)), TensorSpec("picture", "float32", (-1, 3)))


def config(*shapes: dict[str, list[int]]) -> ModelConfig:
    return ModelConfig.model_validate({"warmup": [{"shapes": each} for each in shapes]})


def test_each_shape_is_run_smallest_first() -> None:
    """Small shapes first: a successor of larger ones then reuses the memory of the smaller."""
    runs = warmup_inputs(
        config({"ids": [1, 64], "picture": [1, 3]}, {"ids": [1, 16], "picture": [1, 3]}), SPECS
    )
    assert [run["ids"].shape for run in runs] == [(1, 16), (1, 64)]
    assert {name: array.dtype.name for name, array in runs[0].items()} == {
        "ids": "int64",
        "picture": "float32",
    }


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        pytest.param({"ids": [1, 16]}, "unknown or missing: picture", id="missing"),
        pytest.param({"ids": [1, 1], "picture": [1, 3], "z": [1]}, "missing: z", id="unknown"),
        pytest.param({"ids": [1, 16], "picture": [1, 4]}, r"\[1, 4\] does not fit", id="shape"),
    ],
)
def test_a_shape_that_does_not_fit_is_a_configuration_error(
    shapes: dict[str, list[int]], message: str
) -> None:
    """It is found when the model loads, by name, and not by a predictor that refuses it."""
    with pytest.raises(ConfigError, match=message):
        warmup_inputs(config(shapes), SPECS)

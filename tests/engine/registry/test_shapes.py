"""Shapes in config.toml: the runs before READY."""

import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.engine.registry.model import WARMUP_BYTES, warmup_inputs
from paddlepool.models.repository.config import ModelConfig

SPECS = (TensorSpec("ids", "int64", (-1, -1)), TensorSpec("picture", "float32", (-1, 3)))


def config(*shapes: dict[str, list[int]]) -> ModelConfig:
    return ModelConfig.model_validate({"warmup": [{"shapes": by_input} for by_input in shapes]})


def test_each_shape_is_run_smallest_first() -> None:
    """Small shapes first: a successor of larger ones then reuses the memory of the smaller."""
    runs = warmup_inputs(
        config({"ids": [1, 64], "picture": [1, 3]}, {"ids": [1, 16], "picture": [1, 3]}), SPECS
    )
    assert [run["ids"].shape for run in runs] == [(1, 16), (1, 64)]
    dtypes = {name: array.dtype.name for name, array in runs[0].items()}
    assert dtypes == {"ids": "int64", "picture": "float32"}


def test_a_large_shape_takes_no_memory() -> None:
    """It would for as long as the model is served."""
    [run] = warmup_inputs(config({"ids": [1, (WARMUP_BYTES - 12) // 8], "picture": [1, 3]}), SPECS)
    assert {array.base.nbytes for array in run.values() if array.base is not None} == {4, 8}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        pytest.param({"ids": [1, 16]}, "unknown or missing: picture", id="missing"),
        pytest.param({"ids": [1, 1], "picture": [1, 3], "z": [1]}, "missing: z", id="unknown"),
        pytest.param({"ids": [1, 16], "picture": [1, 4]}, r"\[1, 4\] does not fit", id="shape"),
        pytest.param(
            {"ids": [1, WARMUP_BYTES // 8], "picture": [1, 3]},
            rf"have {WARMUP_BYTES + 12} bytes, the limit is {WARMUP_BYTES}",
            id="one number too many",
        ),
        pytest.param({"ids": [1 << 40, 1 << 40], "picture": [1, 3]}, "the limit is", id="huge"),
    ],
)
def test_a_shape_that_does_not_fit_is_a_configuration_error(
    shapes: dict[str, list[int]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        warmup_inputs(config(shapes), SPECS)


def ragged_config(*widths: int, most: int = 128) -> ModelConfig:
    ragged = [{"input": "ids", "axis": 1, "step": 16, "max": most}]
    shapes = [{"shapes": {"ids": [1, width], "picture": [1, 3]}} for width in widths]
    return ModelConfig.model_validate({"warmup": shapes, "ragged": ragged})


def test_a_ragged_shape_is_run_as_requests_are_padded() -> None:
    """And once, if two shapes are one after padding."""
    runs = warmup_inputs(ragged_config(17, 5, 32, 128), SPECS)
    assert [run["ids"].shape for run in runs] == [(1, 16), (1, 32), (1, 128)]


def test_a_ragged_shape_has_the_limits_of_requests() -> None:
    with pytest.raises(
        ConfigError, match="warmup shape: axis 1 of input 'ids' has size 129, limit 128"
    ):
        warmup_inputs(ragged_config(129), SPECS)
    with pytest.raises(ConfigError, match="the limit is"):  # after padding alone
        warmup_inputs(ragged_config(WARMUP_BYTES // 8 - 3, most=1 << 30), SPECS)

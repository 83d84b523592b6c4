"""Shapes in config.toml: the runs before READY, and axes that must agree."""

import numpy as np
import pytest

from paddlepool.contracts.errors import ConfigError, InvalidTensor
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.engine.registry.model import WARMUP_BYTES, EqualAxes, warmup_inputs
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


INPUTS = (
    TensorSpec("input_ids", "int64", (-1, -1)),
    TensorSpec("attention.mask", "int64", (-1, -1)),
    TensorSpec("other", "int64", (-1, 7)),
)
LENGTHS = ("input_ids.1", "attention.mask.1")


def tensors(ids: int, mask: int) -> Tensors:
    return {
        "input_ids": np.ones((1, ids), np.int64),
        "attention.mask": np.ones((1, mask), np.int64),
        "other": np.ones((1, 7), np.int64),
    }


def test_another_length_is_told_with_both_sizes() -> None:
    """A name may hold points; nothing is said of axes that nobody named."""
    axes = EqualAxes([LENGTHS], INPUTS)
    axes.check(tensors(3, 3))
    with pytest.raises(InvalidTensor) as refused:
        axes.check(tensors(3, 2))
    assert refused.value.message == (
        "inputs do not go together: axis 1 of 'input_ids' has 3, axis 1 of 'attention.mask' has 2; "
        "these must be equal"
    )
    EqualAxes([], INPUTS).check(tensors(3, 2))


@pytest.mark.parametrize("named", ["input_ids.2", "input_ids", "ids.1", "other.1", "input_ids.-1"])
def test_only_free_axes_of_inputs_can_be_named(named: str) -> None:
    with pytest.raises(ConfigError, match=r"names '.*', the free axes .* are attention.mask.0, "):
        EqualAxes([("input_ids.1", named)], INPUTS)

"""Axes that must agree: what config.toml may name, and what a request is told."""

from __future__ import annotations

import numpy as np
import pytest

from app.contracts.errors import ConfigError, InvalidTensor
from app.contracts.tensors import Tensors, TensorSpec
from app.repository.shapes import EqualAxes

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
    """The error lists those there are."""
    with pytest.raises(ConfigError, match=r"names '.*', the free axes .* are attention.mask.0, "):
        EqualAxes([("input_ids.1", named)], INPUTS)

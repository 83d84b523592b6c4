"""Free axes in config.toml: those that must be equal, and those that are padded to a step."""

from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import ConfigError, InvalidTensor
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.engine.registry.axes import PADDED_BYTES, EqualAxes, RaggedAxes
from paddlepool.models.repository.config import ModelConfig, parse_config

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


def ragged(
    input: str = "input_ids", axis: int = 1, step: int = 16, max: int = 64
) -> dict[str, Any]:
    return {"input": input, "axis": axis, "step": step, "max": max}


def ragged_axes(*tables: dict[str, Any], equal: tuple[str, ...] = ()) -> RaggedAxes:
    tables_of = {"ragged": tables, "equal_axes": [equal] if equal else []}
    return RaggedAxes(ModelConfig.model_validate(tables_of), INPUTS)


def test_a_text_and_its_mask_are_padded_at_the_end_with_zeros() -> None:
    axes = ragged_axes(ragged(), ragged("attention.mask"), equal=LENGTHS)
    padded = axes.pad(tensors(17, 17))
    assert (
        padded["input_ids"].tolist() == padded["attention.mask"].tolist() == [[1] * 17 + [0] * 15]
    )
    assert padded["other"].shape == (1, 7)


def test_a_multiple_is_not_copied() -> None:
    inputs = tensors(32, 3)
    padded = ragged_axes(ragged()).pad(inputs)
    assert all(padded[name] is inputs[name] for name in inputs)


@pytest.mark.parametrize(
    ("size", "padded"), [(1, 16), (16, 16), (17, 32), (63, 64), (64, 64), (65, None)]
)
def test_sizes_end_at_the_maximum(size: int, padded: int | None) -> None:
    axes = ragged_axes(ragged())
    if padded is not None:
        assert axes.pad(tensors(size, 3))["input_ids"].shape == (1, padded)
        return
    with pytest.raises(InvalidTensor, match="axis 1 of input 'input_ids' has size 65, limit 64"):
        axes.pad(tensors(size, 3))


def test_two_axes_of_an_input_are_padded() -> None:
    spec = TensorSpec("x", "float32", (-1, 3, -1, -1))
    tables = [ragged("x", 2, 8, 16), ragged("x", 3, 32, 64)]
    axes = RaggedAxes(ModelConfig.model_validate({"ragged": tables}), [spec])
    x = np.ones((2, 3, 5, 40), np.float32)
    padded = axes.pad({"x": x})["x"]
    assert np.array_equal(padded, np.pad(x, ((0, 0), (0, 0), (0, 3), (0, 24))))
    assert axes.nbytes({"x": x}) == padded.nbytes


def test_a_narrow_tensor_does_not_take_many_times_its_memory() -> None:
    """The limit counts padded bytes; it leaves room for rows of usual widths."""
    spec = TensorSpec("x", "uint8", (-1, -1, -1))
    config = ModelConfig.model_validate({"ragged": [ragged("x", 2, 64, 128)]})
    axes = RaggedAxes(config, [spec])

    def pad(high: int, wide: int) -> int:
        return axes.pad({"x": np.broadcast_to(np.uint8(0), (1, high, wide))})["x"].nbytes

    high = PADDED_BYTES // 64
    assert pad(high, 1) == PADDED_BYTES
    with pytest.raises(InvalidTensor, match=rf"{PADDED_BYTES + 64} bytes after padding, limit"):
        pad(high + 1, 1)
    assert pad(high + 1, 32) == PADDED_BYTES + 64  # twice its own bytes


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        pytest.param(
            [ragged("x")],
            "axis 1 of input 'x', the free axes after the first are attention.mask.1, input_ids.1",
            id="input",
        ),
        pytest.param([ragged(axis=2)], "axis 2 of input 'input_ids'", id="axis"),
        pytest.param([ragged("other")], "axis 1 of input 'other'", id="fixed"),
        pytest.param([ragged(), ragged()], "'input_ids.1' twice", id="twice"),
        pytest.param([ragged()], "all of them or none must be ragged", id="one of equal axes"),
        pytest.param([ragged(), ragged("attention.mask", step=32)], "the same step", id="step"),
        pytest.param([ragged(), ragged("attention.mask", max=32)], "the same step", id="max"),
    ],
)
def test_a_ragged_axis_fits_the_model(tables: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ragged_axes(*tables, equal=LENGTHS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("axis = 1\nstep = 64", "ragged.0.max: Field required", id="no max"),
        pytest.param(
            "axis = 1\nstep = 64\nmax = 100",
            "max 100 is not a multiple of step 64",
            id="no multiple",
        ),
        pytest.param("axis = 1\nstep = 0\nmax = 64", "ragged.0.step: .* greater", id="step"),
        pytest.param("axis = 0\nstep = 64\nmax = 64", "ragged.0.axis: .* greater", id="batch"),
        pytest.param(
            "axis = 1\nstep = 64\nmax = 64\nvalue = 1", "ragged.0.value: unknown", id="key"
        ),
    ],
)
def test_a_wrong_table_is_a_configuration_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(f'[[ragged]]\ninput = "x"\n{text}'.encode())

"""Which operators are not given to the converter."""

from typing import Any

import pytest

from paddlepool.engine.backends.converter_rules import unconvertible
from paddlepool.engine.backends.paddle_operators import FREE, Operator, Shape


def operator(
    name: str,
    *inputs: Shape | None,
    output: Shape = (),
    used: tuple[bool, ...] = (True,),
    integer: bool = False,
    **attributes: Any,
) -> Operator:
    return Operator(name, attributes, inputs, (output,), used, integer)


WORDS: Shape = (FREE, FREE, 8)
LSTM: dict[str, Any] = {"mode": "LSTM", "num_layers": 1}


@pytest.mark.parametrize(
    ("checked", "reason"),
    [
        (operator("hardtanh", WORDS, t_min=-1.0, t_max=1.0), ""),
        (operator("hardtanh", WORDS, t_min=0.0, t_max=6.0), "bounds"),
        (operator("p_norm", WORDS, porder=2.0), ""),
        (operator("p_norm", WORDS, porder=None), "infinity"),
        (operator("p_norm", WORDS, porder=0.0), "order of 0"),
        (operator("p_norm", WORDS, porder=2.0, asvector=True), "no axis"),
        (operator("rnn", WORDS, None, None, None, used=(True, False, False), **LSTM), ""),
        (operator("rnn", WORDS, None, None, (FREE,), used=(True, False, False), **LSTM), "lengths"),
        (operator("rnn", WORDS, used=(True, False, True), mode="GRU", num_layers=2), "states"),
        (operator("rnn", WORDS, used=(True, False, False), mode="GRU", num_layers=2), ""),
        (operator("rnn", WORDS, used=(True, False, False), mode="RNN_TANH"), "plain cell"),
        (operator("pool2d", (FREE, 3, 6, 12), output=(FREE, 3, 3, 4), adaptive=True), ""),
        (operator("pool2d", (FREE, 3, 7, 12), output=(FREE, 3, 3, 4), adaptive=True), "adaptive"),
        (operator("pool2d", (FREE, 3, FREE, 9), output=(FREE, 3, 3, 3), adaptive=True), "adaptive"),
        (operator("pool2d", (FREE, 3, FREE, 9), output=(FREE, 3, 1, 1), adaptive=True), ""),
        (operator("pool2d", (FREE, 3, 7, 9), output=(FREE, 3, 3, 4), adaptive=False), ""),
        (operator("layer_norm", WORDS, begin_norm_axis=1), "several axes"),
        (operator("group_norm", WORDS, data_format="NHWC"), "channels last"),
        (operator("conv2d", WORDS, data_format="NHWC"), "channels last"),
        (operator("conv2d", WORDS, data_format="NCHW"), ""),
        (operator("softplus", WORDS, beta=2.0, threshold=20.0), "beta"),
        (operator("logsigmoid", WORDS), "infinite"),
        (operator("atan2", WORDS, WORDS), "two zeros"),
        (operator("flip", (FREE, 3), axis=[0]), "free size"),
        (operator("flip", (FREE, 3), axis=[1]), ""),
        (operator("floor_divide", WORDS, integer=True), "integers"),
        (operator("floor_divide", WORDS), ""),
        (operator("fft_r2c", WORDS), "wrong"),
        (operator("lerp", WORDS, WORDS, WORDS), "not known"),
        (operator("relu", WORDS), ""),
    ],
)
def test_what_the_converter_gets_wrong_is_named(checked: Operator, reason: str) -> None:
    reasons = unconvertible([operator("data"), checked])
    assert bool(reasons) == bool(reason)
    assert all(why.startswith(f"{checked.name}: ") and reason in why for why in reasons)


def test_integers_that_are_answers_are_not_computed_as_float32() -> None:
    """Above 2^24 they would be rounded; positions that only choose a row of a table are smaller."""
    scaled, real = operator("scale", integer=True), operator("scale")
    fetched, other = operator("fetch", integer=True), operator("fetch")
    assert unconvertible([scaled, fetched]) == ["scale: integers, computed as float32"]
    assert unconvertible([scaled, other]) == unconvertible([real, fetched]) == []

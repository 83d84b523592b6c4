"""Heads that enlarge a picture, rewritten for OpenVINO."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from paddlepool.engine.backends.openvino_heads import move_before_enlarging

openvino = pytest.importorskip("openvino", reason="NOT TESTED: the extra engines is missing")

INPUTS, CHANNELS = 5, 20


def head(
    *,
    times: tuple[int, int] = (2, 2),
    kernel: int | None = None,
    outputs: int = 1,
    bias: tuple[int, ...] = (1, CHANNELS, 1, 1),
    extras: bool = True,
    activation: str = "relu",
    seed: int = 1,
) -> Any:
    """A model whose output is such a head's; `extras` are batch norm, second bias and sigmoid."""
    from openvino import opset13 as opset

    random = np.random.default_rng(seed)

    def constant(*shape: int) -> Any:
        return opset.constant(random.uniform(0.2, 1, shape).astype(np.float32))

    def enlarged(data: Any, inputs: int, channels: int, by: int, kernel: int) -> Any:
        weights = opset.constant(
            random.uniform(-1, 1, (inputs, channels, kernel, kernel)).astype(np.float32)
        )
        return opset.convolution_backprop_data(
            data, weights, [by, by], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1]
        )

    picture = opset.parameter([-1, INPUTS, -1, -1], np.float32, name="x")
    data = enlarged(picture, INPUTS, CHANNELS, times[0], kernel or times[0])
    data = opset.add(data, constant(*bias))
    if extras:
        statistics = [constant(CHANNELS) for _ in range(4)]
        data = opset.batch_norm_inference(data, *statistics, epsilon=1e-3)
    data = getattr(opset, activation)(data)
    data = enlarged(data, CHANNELS, outputs, times[1], times[1])
    if extras:
        data = opset.sigmoid(opset.add(data, constant(1, 1, 1, 1)))
    data.output(0).set_names({"y"})
    return openvino.Model([opset.result(data)], [picture], "head")


def answers(model: Any) -> Any:
    x = np.random.default_rng(2).uniform(-1, 1, (2, INPUTS, 7, 10)).astype(np.float32)
    exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return openvino.compile_model(model, "CPU", exact)(x)["y"]


@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize("times", [(2, 2), (2, 3), (2, 4)])
def test_a_head_gives_the_same_from_products_for_each_pixel(
    times: tuple[int, int], extras: bool
) -> None:
    model = head(times=times, extras=extras)
    expected = answers(model)
    assert move_before_enlarging(model)
    kinds = Counter(op.get_type_name() for op in model.get_ops())
    assert (kinds["ConvolutionBackpropData"], kinds["DepthToSpace"]) == (0, 1)
    found = answers(model)
    assert (
        found.shape == expected.shape == (2, 1, 7 * times[0] * times[1], 10 * times[0] * times[1])
    )
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    assert not move_before_enlarging(model)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 2, "times": (1, 2)},
        {"times": (3, 2)},
        {"outputs": 2},
        {"activation": "sigmoid"},
        {"bias": (1, 1, 14, 1), "extras": False},
        {"bias": (1, 1, 1, 20), "extras": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_another_head_stays_as_it_is(options: dict[str, Any]) -> None:
    """Its kernel overlaps, it has several classes, or a step is not one of single pixels."""
    model = head(**options)
    assert_unchanged(model)


def assert_unchanged(model: Any) -> None:
    before = [op.get_type_name() for op in model.get_ordered_ops()]
    assert not move_before_enlarging(model)
    assert [op.get_type_name() for op in model.get_ordered_ops()] == before


@pytest.mark.parametrize("ending", ["norm", "head", "five axes", "reshaped", "products"])
def test_a_model_with_some_of_the_operators_stays_as_it_is(ending: str) -> None:
    """A sum of two computed values, an axis more, weights that are reshaped, no pictures at all."""
    from openvino import opset13 as opset

    numbers = [opset.constant(np.full(CHANNELS, n + 1, np.float32)) for n in range(4)]
    picture = opset.parameter([-1, CHANNELS, -1, -1], np.float32)
    kernel = opset.constant(np.ones((CHANNELS, 1, 2, 2), np.float32))
    if ending == "products":
        picture = opset.parameter([-1, CHANNELS], np.float32)
        weights = opset.constant(np.eye(CHANNELS, dtype=np.float32))
        added = opset.add(opset.matmul(picture, weights, False, False), opset.relu(picture))
    else:
        added = opset.add(picture, opset.relu(picture))
    data = opset.batch_norm_inference(added, *numbers, epsilon=1e-3)
    if ending not in ("norm", "products"):
        square = opset.constant(np.ones((CHANNELS, CHANNELS, 2, 2), np.float32))
        if ending == "reshaped":
            turned = opset.constant(np.ones((1, CHANNELS, 2, 2), np.float32))
            kernel = opset.reshape(turned, [CHANNELS, 1, 2, 2], False)
        if ending != "head":
            data = opset.convolution_backprop_data(
                data, square, [2, 2], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1]
            )
        data = opset.convolution_backprop_data(
            opset.relu(data), kernel, [2, 2], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1]
        )
        if ending == "five axes":
            data = opset.add(data, opset.constant(np.ones((1, 1, 1, 1, 1), np.float32)))
    assert_unchanged(openvino.Model([opset.result(data)], [picture], "other"))

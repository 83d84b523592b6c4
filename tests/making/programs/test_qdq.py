"""int8 from measured ranges: named layers, quantised weights, and what a wrong graph gets."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from paddlepool.contracts.errors import ExportError
from paddlepool.making.programs.onnx_graph import Graph
from paddlepool.making.programs.qdq import (
    Activation,
    Ranges,
    measure_ranges,
    quantised,
    read_ranges,
)
from tests.making.programs.networks import named, two_layers

RANGES = Ranges(
    activations=(
        Activation(value="x", scale=2 / 255, zero_point=0, signed=True, readers=("first",)),
        Activation(value="Relu_0", scale=6 / 255, zero_point=0, signed=False, readers=("second",)),
    ),
    float_layers=(),
)


def run(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    [entry] = session.get_inputs()
    return np.asarray(session.run(None, {entry.name: x})[0])


@pytest.fixture
def x() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)


def test_a_graph_is_told_by_its_layers(x: np.ndarray[Any, Any]) -> None:
    """What a converter leaves is gone, the bias is inside, and the function is the same."""
    plain, clean = two_layers(), named(two_layers())
    assert [node.name for node in clean.graph.node] == ["first", "Relu_0", "second"]
    assert [node.op_type for node in plain.graph.node].count("Identity") == 1
    assert len(clean.graph.node[0].input) == 3
    np.testing.assert_array_equal(run(plain, x), run(clean, x))


def test_int8_stays_close_to_float(x: np.ndarray[Any, Any]) -> None:
    """And is not float: a weight has 8 bits, a scale for each output channel."""
    small = quantised(named(two_layers()), RANGES)
    constants = Graph(small).constants
    assert constants["second.weight.int8"].dtype == np.int8
    assert constants["second.weight.scale"].shape == (2,)
    assert constants["first.weight.int8"].max() <= 64
    expected, found = run(named(two_layers()), x), run(small, x)
    gap = np.abs(expected - found).max()
    assert 0 < gap < 0.1 * np.abs(expected).max()


def test_channels_of_different_size_share_a_scale(x: np.ndarray[Any, Any]) -> None:
    """By factors, without which the small channels would get no levels."""
    network = named(two_layers())
    weights = Graph(network).constants
    sizes = np.array([1, 1, 1e-3, 1e-3], np.float32)
    for tensor in network.graph.initializer:
        by = {"second.weight": 1 / sizes.reshape(1, -1, 1, 1), "first.bias": sizes}
        by["first.weight"] = sizes.reshape(-1, 1, 1, 1)
        array = weights[tensor.name] * by.get(tensor.name, np.float32(1))
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    expected, gaps = run(network, x), []
    for factors in ((), (1.0, 1.0, 1e3, 1e3)):
        [first, second] = RANGES.activations
        ranges = replace(RANGES, activations=(first, replace(second, factors=factors)))
        gaps.append(np.abs(run(quantised(network, ranges), x) - expected).max())
    assert gaps[1] < 0.1 * np.abs(expected).max() < gaps[0]


def test_ranges_are_read_back_from_a_quantised_graph() -> None:
    """So that what another quantiser measured can be shipped."""
    small = quantised(named(two_layers()), replace(RANGES, float_layers=("first",)))
    found = read_ranges(named(two_layers()), small)
    assert found.float_layers == ("first",)
    assert [activation.value for activation in found.activations] == ["x", "Relu_0"]
    assert [activation.readers for activation in found.activations] == [("first",), ("second",)]
    assert found.activations[1].scale == pytest.approx(6 / 255, rel=1e-5)


def test_a_range_that_only_float_layers_would_read_is_left_out() -> None:
    """Rounding their inputs would cost accuracy and save nothing."""
    small = quantised(named(two_layers()), replace(RANGES, float_layers=("second",)))
    found = read_ranges(named(two_layers()), small)
    assert [activation.value for activation in found.activations] == ["x"]


def test_ranges_of_another_graph_are_refused() -> None:
    """Instead of a program that computes something else."""
    other = replace(RANGES, float_layers=("third", "fourth"))
    with pytest.raises(ExportError, match="2 of its names, such as fourth"):
        quantised(named(two_layers()), other)


def test_a_depthwise_convolution_gets_one_scale(x: np.ndarray[Any, Any]) -> None:
    """Not one for each channel, which ranges cannot hold."""
    pytest.importorskip("nncf")
    weight = numpy_helper.from_array(np.ones((3, 1, 3, 3), np.float32), "depthwise.weight")
    node = helper.make_node("Conv", ["x", "depthwise.weight"], ["y"], "depthwise", group=3)
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, side, side])]
        for name, side in (("x", 8), ("y", 6))
    )
    graph = helper.make_graph([node], "one", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ranges = measure_ranges(model, [{"x": x}])
    assert [activation.readers for activation in ranges.activations] == [("depthwise",)]

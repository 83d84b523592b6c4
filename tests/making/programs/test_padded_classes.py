"""The best of padded classes is the best class, with the same score."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from paddlepool.making.programs.onnx_graph import simplified
from paddlepool.making.programs.padded_classes import PARTS, pad_classes
from tests.making.programs.networks import named, two_layers

WIDTH = 5
RANDOM = np.random.default_rng(4)


def recogniser(classes: int) -> onnx.ModelProto:
    """x [lines,steps,WIDTH]: the best class of each step, and its score."""
    constants = {
        "head.weight": RANDOM.normal(size=(WIDTH, classes)).astype(np.float32),
        "head.bias": RANDOM.normal(size=classes).astype(np.float32) - 3,
        "last": np.array([-1]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "head.weight"], ["p"]),
        helper.make_node("Add", ["p", "head.bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=-1),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=-1, keepdims=0),
        helper.make_node("Cast", ["best"], ["class"], to=TensorProto.INT32),
        helper.make_node("ReduceMax", ["scores", "last"], ["score"], keepdims=0),
    ]
    described = [
        helper.make_tensor_value_info(name, kind, ["lines", "steps", *more])
        for name, kind, more in (
            ("x", TensorProto.FLOAT, [WIDTH]),
            ("class", TensorProto.INT32, []),
            ("score", TensorProto.FLOAT, []),
        )
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tiny", described[:1], described[1:], initializers)
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return simplified(network, inputs=["x"], outputs=["class", "score"])


@pytest.mark.parametrize("classes", [3, PARTS, 2 * PARTS + 3])
def test_classes_and_scores_stay_equal(classes: int) -> None:
    plain = recogniser(classes)
    padded = pad_classes(plain)
    x = RANDOM.normal(size=(2, 7, WIDTH)).astype(np.float32)
    results: list[Any] = [
        onnxruntime.InferenceSession(network.SerializeToString()).run(None, {"x": x})
        for network in (plain, padded)
    ]
    assert "Softmax" not in {node.op_type for node in padded.graph.node}
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5)


def test_another_model_is_returned_as_it_is() -> None:
    network = named(two_layers())
    assert pad_classes(network) is network

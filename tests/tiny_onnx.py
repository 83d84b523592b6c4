"""Tiny ONNX networks for tests, built node by node: no file of a real model is needed."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


def model(
    nodes: list[onnx.NodeProto],
    *,
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:
    """Of float32 inputs and outputs; a word as a size is a free one."""
    described = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
        for shapes in (inputs.items(), outputs.items())
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tiny", *described, initializer=initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    made.ir_version = 9
    onnx.checker.check_model(made)
    return made


def brightness_matte(side: int) -> onnx.ModelProto:
    """A matting network of ISNet's shape: what is brighter than the middle is foreground."""
    constants = {
        "sum.weight": np.full((1, 3, 1, 1), 40.0, np.float32),
        "inverse.weight": np.full((1, 3, 1, 1), -40.0, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["picture", "inverse.weight"], ["inverse"]),
        helper.make_node("Sigmoid", ["inverse"], ["coarse"]),
        helper.make_node("Conv", ["picture", "sum.weight"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["fine"]),
    ]
    mask: list[int | str] = [1, 1, side, side]
    return model(
        nodes,
        inputs={"picture": [1, 3, side, side]},
        outputs={"coarse": mask, "fine": mask},
        constants=constants,
    )


def classifier() -> onnx.ModelProto:
    """Rows [N,4] to scores [N,3], and each row on its own."""
    random = np.random.default_rng(3)
    constants = {
        "head.weight": random.normal(size=(4, 3)).astype(np.float32),
        "head.bias": np.array([0.5, 0.0, -0.5], np.float32),
    }
    nodes = [helper.make_node("Gemm", ["rows", "head.weight", "head.bias"], ["scores"])]
    return model(
        nodes, inputs={"rows": ["N", 4]}, outputs={"scores": ["N", 3]}, constants=constants
    )

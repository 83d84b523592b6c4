"""Small networks as a converter writes them: constants as nodes, biases behind, odd names."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from paddlepool.making.programs.onnx_graph import simplified
from tests.tiny_onnx import model


def named(network: onnx.ModelProto) -> onnx.ModelProto:
    return simplified(network, inputs=["x"], outputs=["y"])


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))


def two_layers() -> onnx.ModelProto:
    """x [1,3,8,8] through two convolutions; the first has its bias behind it."""
    random = np.random.default_rng(2)
    nodes = [
        constant("first.weight", random.normal(size=(4, 3, 3, 3)).astype(np.float32) / 4),
        constant("first.bias", random.normal(size=4).astype(np.float32) / 8),
        constant("shape", np.array([1, -1, 1, 1], np.int64)),
        constant("second.weight", random.normal(size=(2, 4, 1, 1)).astype(np.float32)),
        helper.make_node("Conv", ["t0", "first.weight"], ["t1"], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["first.bias", "shape"], ["t2"]),
        helper.make_node("Add", ["t1", "t2"], ["t3"]),
        helper.make_node("Identity", ["t3"], ["t4"]),
        helper.make_node("Relu", ["t4"], ["t5"]),
        helper.make_node("Conv", ["t5", "second.weight"], ["fetch_0"]),
    ]
    return model(
        nodes, inputs={"t0": [1, 3, 8, 8]}, outputs={"fetch_0": [1, 2, 8, 8]}, constants={}
    )


def planted(culprit: str | None) -> onnx.ModelProto:
    """x [1,4,8,8] through six 1×1 convolutions in three stages, of which one collapses in int8.

    Its weights for the last input channel, which is always zero, are so large that the others,
    which matter, round to nothing on the same scale.
    """
    random = np.random.default_rng(6)
    nodes, constants, value = [], {}, "t0"
    names = [f"{stage}.{name}" for stage in ("in", "middle", "out") for name in ("a", "b")]
    for place, name in enumerate(names):
        weight = random.uniform(0.1, 0.4, (4, 4, 1, 1)).astype(np.float32)
        weight[3] = 0.0  # the last channel of everything is zero
        if name == culprit:
            weight[:, 3] = 1000.0
        constants[f"{name}.weight"] = weight
        after = "fetch_0" if place == len(names) - 1 else f"r{place}"
        nodes.append(helper.make_node("Conv", [value, f"{name}.weight"], [f"c{place}"]))
        nodes.append(helper.make_node("Relu", [f"c{place}"], [after]))
        value = after
    return model(
        nodes, inputs={"t0": [1, 4, 8, 8]}, outputs={"fetch_0": [1, 4, 8, 8]}, constants=constants
    )

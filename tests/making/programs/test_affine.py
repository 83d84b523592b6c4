"""Constant affine operations become part of the convolutions beside them."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

from paddlepool.making.programs.affine import fold_affine
from tests.making.programs.networks import named
from tests.making.programs.test_qdq import run
from tests.tiny_onnx import model

RANDOM = np.random.default_rng(3)
X = RANDOM.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)


def values(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.5, 1.5, shape).astype(np.float32)


def block(*, kernel: int, pad: int) -> onnx.ModelProto:
    """x [1,3,8,8]: a convolution with affine neighbours, an activation, and more before another."""
    constants = {
        "first.weight": values(4, 3, 3, 3), "first.bias": values(4),
        "scale": values(4), "shift": values(4), "mean": values(4), "variance": values(4),
        "factor": values(1), "offset": values(1, 4, 1, 1),
        "outer.factor": values(4, 1, 1), "outer.offset": values(1),
        "second.weight": values(2, 4, kernel, kernel),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "first.weight", "first.bias"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
        helper.make_node("Mul", ["factor", "n"], ["m"]),
        helper.make_node("Add", ["m", "offset"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Mul", ["outer.factor", "r"], ["om"]),
        helper.make_node("Add", ["om", "outer.offset"], ["oa"]),
        helper.make_node("Conv", ["oa", "second.weight"], ["y"], pads=[pad] * 4),
    ]
    side = 8 + 2 * pad - kernel + 1
    return model(
        nodes, inputs={"x": [1, 3, 8, 8]}, outputs={"y": [1, 2, side, side]}, constants=constants
    )


@pytest.mark.parametrize(("kernel", "pad", "left"), [(1, 0, 0), (1, 1, 2), (3, 1, 2)])
def test_the_result_stays_equal(kernel: int, pad: int, left: int) -> None:
    """What precedes a padded convolution stays, because zeros of the padding are not multiplied."""
    plain = named(block(kernel=kernel, pad=pad))
    folded = fold_affine(plain)
    kinds = Counter(node.op_type for node in folded.graph.node)
    assert kinds.pop("Mul", 0) + kinds.pop("Add", 0) == left
    assert kinds == {"Conv": 2, "Relu": 1}
    np.testing.assert_allclose(run(folded, X), run(plain, X), rtol=1e-5, atol=1e-5)


def test_a_value_with_another_reader_stays() -> None:
    """As well as what depends on the input."""
    nodes = [
        helper.make_node("Conv", ["x", "first.weight"], ["c"]),
        helper.make_node("Mul", ["c", "factor"], ["m"]),
        helper.make_node("Mul", ["c", "m"], ["y"]),
    ]
    constants = {"first.weight": values(3, 3, 1, 1), "factor": values(1)}
    shape: list[int | str] = [1, 3, 8, 8]
    network = model(nodes, inputs={"x": shape}, outputs={"y": shape}, constants=constants)
    folded = fold_affine(named(network))
    assert [node.op_type for node in folded.graph.node] == ["Conv", "Mul", "Mul"]

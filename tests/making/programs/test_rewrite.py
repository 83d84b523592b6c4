"""A rewritten graph computes the same, with other operators."""

from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper

from paddlepool.making.programs.onnx_graph import Graph
from paddlepool.making.programs.qdq import Activation, Ranges, quantised, read_ranges
from paddlepool.making.programs.rewrite import OUTLIER, rewritten
from tests.making.programs.networks import named
from tests.making.programs.test_qdq import run
from tests.tiny_onnx import model


def weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).normal(size=shape) / 4).astype(np.float32)


def resize(value: str, output: str, *, mode: str = "half_pixel") -> onnx.NodeProto:
    return helper.make_node(
        "Resize", [value, "", "", f"{output}.sizes"], [output], mode="linear",
        coordinate_transformation_mode=mode,
    )  # fmt: skip


def network(*, outlier: float, mode: str = "half_pixel") -> onnx.ModelProto:
    """x [1,3,8,8]: a U-block of two levels, and a side output as U²-Netp has it.

    The weights of the channel 1 of `low` in the layer `high` are `outlier` times as large.
    """
    high = weights(6, 7, 3, 3)
    high[:, 1] *= outlier
    constants = {
        "enter.weight": weights(3, 3, 3, 3), "enter.bias": weights(3),
        "low.weight": weights(4, 3, 3, 3), "low.bias": weights(4),
        "high.weight": high, "high.bias": weights(6),
        "taps.weight": weights(9, 6, 1, 1), "place.weight": weights(1, 9, 3, 3),
        "large.sizes": np.array([1, 4, 8, 8]), "side.sizes": np.array([1, 1, 8, 8]),
    }  # fmt: skip
    around = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "enter.weight", "enter.bias"], ["c0"], **around),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p0", "low.weight", "low.bias"], ["c1"], **around),
        helper.make_node("Relu", ["c1"], ["r1"]),
        resize("r1", "large", mode=mode),
        helper.make_node("Concat", ["large", "r0"], ["both"], axis=1),
        helper.make_node("Conv", ["both", "high.weight", "high.bias"], ["c2"], **around),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "taps.weight"], ["t"]),
        helper.make_node("Conv", ["t", "place.weight"], ["s"], **around),
        helper.make_node("ReduceMean", ["p0"], ["d"], axes=[1]),
        resize("d", "side", mode=mode),
        helper.make_node("Add", ["s", "side"], ["y"]),
    ]
    return model(
        nodes, inputs={"x": [1, 3, 8, 8]}, outputs={"y": [1, 1, 8, 8]}, constants=constants
    )


X = np.random.default_rng(1).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)


def decoder(weight: np.ndarray) -> onnx.ModelProto:
    """x [1,c,34,34]: a 3×3 convolution of its halved and enlarged form beside itself."""
    count, channels = len(weight), weight.shape[1] // 2
    size = [1, channels, 34, 34]
    nodes = [
        helper.make_node("AveragePool", ["x"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
        resize("small", "large"),
        helper.make_node("Concat", ["large", "x"], ["both"], axis=1),
        helper.make_node("Conv", ["both", "join.weight", "join.bias"], ["y"], pads=[1, 1, 1, 1]),
    ]
    constants = {
        "join.weight": weight, "join.bias": weights(count), "large.sizes": np.array(size),
    }  # fmt: skip
    return named(
        model(nodes, inputs={"x": size}, outputs={"y": [1, count, 34, 34]}, constants=constants)
    )


def kinds(network: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in network.graph.node)


def test_the_result_stays_equal() -> None:
    """At the edges too, where the convolutions see padding."""
    for outlier in (1, 10 * OUTLIER):
        plain = named(network(outlier=outlier))
        other = rewritten(plain).model
        np.testing.assert_allclose(run(other, X), run(plain, X), rtol=0, atol=1e-4 * outlier)


def test_side_outputs_are_blocks_and_products() -> None:
    """One convolution in place of two, and no resize of a single channel."""
    plain = named(network(outlier=1))
    other = rewritten(plain)
    assert kinds(plain)["Conv"] == 5
    assert kinds(plain)["Resize"] == 2
    assert kinds(other.model)["Conv"] == 4
    assert kinds(other.model)["DepthToSpace"] == 1
    assert kinds(other.model)["Resize"] == 1
    assert other.float_nodes == ("Resize_1.wide", "Resize_1")


def test_an_outlier_channel_is_apart() -> None:
    """The largest weight that is left is of the size of the others."""
    other = rewritten(named(network(outlier=10 * OUTLIER)))
    assert "high.outlier" in other.float_nodes
    sizes = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in other.model.graph.initializer
    }
    assert np.abs(sizes["high.weight"]).max() < 2
    assert not sizes["high.weight"][:, 1].any()
    assert not sizes["low.weight"][1].any()


def test_an_unknown_resize_stays() -> None:
    plain = named(network(outlier=10 * OUTLIER, mode="align_corners"))
    other = rewritten(plain)
    assert kinds(other.model)["Resize"] == 2
    assert other.float_nodes == ()
    np.testing.assert_allclose(run(other.model, X), run(plain, X), rtol=0, atol=1e-3)


def test_a_resize_between_quantised_values_is_in_uint8() -> None:
    """It reads and writes quantised numbers, on one scale."""
    plain = rewritten(named(network(outlier=1))).model
    both = {
        value: Activation(value=value, scale=scale, zero_point=0, signed=False, readers=(reader,))
        for value, scale, reader in (
            ("Relu_1", 2 / 255, "Resize_0"), ("Resize_0", 3 / 255, "Concat_0"),
            ("Relu_0", 3 / 255, "Concat_0"),
        )
    }  # fmt: skip
    ranges = Ranges(
        activations=tuple(both.values()), float_layers=("taps", "Resize_1.wide", "Resize_1")
    )
    small = quantised(plain, ranges)
    [resize_node] = [node for node in small.graph.node if node.op_type == "Resize"]
    assert resize_node.input[0] == "Relu_1.quantised"
    assert [
        node.op_type for node in small.graph.node if node.input[0] == resize_node.output[0]
    ] == ["DequantizeLinear"]
    gap = np.abs(run(small, X) - run(plain, X)).max()
    assert 0 < gap < 0.1


def test_a_bottleneck_stays() -> None:
    """One convolution would multiply more than the two."""
    constants = {"into.weight": weights(2, 3, 1, 1), "out.weight": weights(4, 2, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "into.weight"], ["t"]),
        helper.make_node("Conv", ["t", "out.weight"], ["y"], pads=[1, 1, 1, 1]),
    ]
    plain = model(
        nodes, inputs={"x": [1, 3, 8, 8]}, outputs={"y": [1, 4, 8, 8]}, constants=constants
    )
    assert kinds(rewritten(named(plain)).model)["Conv"] == 2


def test_a_convolution_comes_before_its_upsampling() -> None:
    """The centres of the kernels are exact, and the rest nearly so where values change slowly."""
    weight = weights(256, 512, 3, 3)
    across, down, phase = np.random.default_rng(3).uniform(0, 0.2, (3, 256, 1, 1))
    y, x = np.mgrid[:34, :34]
    waves = np.sin(across * x + down * y + 32 * phase)[None].astype(np.float32)
    plain = decoder(weight)
    other = rewritten(plain, approximate=True)
    assert [node.op_type for node in other.model.graph.node] == [
        "AveragePool", "Conv", "Resize", "Conv", "Add",
    ]  # fmt: skip
    assert other.float_nodes == ()
    inside = (..., slice(4, -4), slice(4, -4))  # the padding's place is another at half the size
    expected = run(plain, waves)[inside]
    gap = run(other.model, waves)[inside] - expected
    assert 0 < gap.std() < 0.03 * expected.std()
    centre = np.zeros_like(weight)
    centre[:, :, 1, 1] = weight[:, :, 1, 1]
    plain = decoder(centre)
    moved = rewritten(plain, approximate=True).model
    np.testing.assert_allclose(run(moved, waves), run(plain, waves), rtol=0, atol=1e-3)


def test_a_convolution_stays_behind_its_upsampling() -> None:
    """If it is small, if it makes more channels than it reads, or without permission."""
    for network, approximate in (
        (decoder(weights(16, 32, 3, 3)), True),
        (decoder(weights(512, 256, 3, 3)), True),
        (decoder(weights(256, 512, 3, 3)), False),
    ):
        assert kinds(rewritten(network, approximate=approximate).model)["Add"] == 0


def test_the_sum_of_two_convolutions_is_rounded_once() -> None:
    """The upsampled one is int8, with one scale and offset before and after; the other is not."""
    plain = rewritten(decoder(weights(256, 512, 3, 3)), approximate=True).model
    last = numpy_helper.from_array(weights(256, 256, 1, 1), "last.weight")
    plain.graph.initializer.append(last)
    plain.graph.node.append(helper.make_node("Conv", ["y", "last.weight"], ["z"], "last"))
    plain.graph.output[0].name = "z"  # what no int8 layer reads needs no range
    values = {"join.before": 3.0, "join.before.Resize": 2.0, "join.before.rest": 1.0, "x": 1.0}
    readers = {"join.before": "join.before.Resize", "x": "join"}
    ranges = Ranges(
        activations=tuple(
            Activation(
                value=value, scale=scale, zero_point=int(scale), signed=True,
                readers=(readers.get(value, "join.before.Add"),),
            )
            for value, scale in values.items()
        ),
        float_layers=(),
    )  # fmt: skip
    small = quantised(plain, ranges)
    measured = [entry.value for entry in read_ranges(plain, small).activations]
    assert measured == ["x"]  # the resize reads and writes int8 itself
    graph = Graph(small)
    [enlarge] = [node for node in graph.nodes if node.op_type == "Resize"]
    assert enlarge.input[0] == "join.before.quantised"
    around = [graph.maker(enlarge.input[0]), *graph.users(enlarge.output[0])]
    assert [list(node.input[1:]) for node in around if node] == [
        ["join.before.Resize.scale", "join.before.Resize.zero"]
    ] * 2

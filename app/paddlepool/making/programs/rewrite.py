"""Rewrites a simplified graph so that its int8 program takes less time.

Results in float32 stay equal up to rounding, unless `approximate` allows convolutions before their
upsampling. What a rewrite does not fit stays as it is.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from paddlepool.making.programs.onnx_graph import Graph, attributes

BLOCK = 4
"""A convolution to one channel computes squares of this many pixels at once, as its channels."""
OUTLIER = 50
"""An input channel whose largest weight exceeds the median channel's by this factor leaves the
other weights of its layer no levels in int8. In U²-Netp one channel exceeds it, by 86; the next
ones reach 21."""

HALF_PIXEL = (1 / 2, 5 / 8, -1 / 8)
"""Weights of the value before, of a value and of the value after, which move it by half a pixel.
They were chosen by the error of U²-Netp's masks, and are close to the least-squares weights for
values with a correlation of 0.5 to 0.7 between neighbours."""
SAVED_PRODUCTS = 5e8
"""A convolution is computed before its upsampling if that saves so many multiplications. In U²-Netp
two do; a third, smaller one would lose more than both."""

Shapes = Mapping[str, list[int]]
"""Sizes of values by name; 0 for a size that is not fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The rewritten model, and the names of its new nodes that must stay float."""

    model: onnx.ModelProto
    float_nodes: tuple[str, ...]


def rewritten(model: onnx.ModelProto, *, approximate: bool = False) -> Rewritten:
    """Return a rewritten copy of a simplified graph.

    - A 1×1 convolution and the only convolution that reads it become one, if that is no more work.
    - A 3×3 convolution to one channel, which leaves fifteen of sixteen vector lanes idle, computes
      4×4 pixels as 16 channels, with a kernel of 6×6 and a stride of 4.
    - An upsampling of one channel becomes two matrix products, which OpenVINO computes ten times as
      fast.
    - An input channel with outlier weights gets a float convolution of its own (OUTLIER).
    - The sizes of other upsamplings become constant factors.
    - If `approximate`, a 3×3 convolution of an upsampled value beside another one becomes the sum
      of two convolutions, of which one comes before the upsampling and does a quarter of the work.
    """
    shapes = _shapes(model)
    graph = Graph(deepcopy(model))
    _merge_pointwise(graph)
    _blocks(graph, shapes)
    floats = [*_split_outliers(graph, shapes), *_resizes(graph, shapes)]
    if approximate:
        _convolve_before_upsampling(graph, shapes)
    graph.drop_unread()
    done = graph.model()
    onnx.checker.check_model(done)
    return Rewritten(model=done, float_nodes=tuple(floats))


def _shapes(model: onnx.ModelProto) -> Shapes:
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether it is a convolution without strides, dilations, groups and automatic padding."""
    options = attributes(node)
    return (
        node.op_type == "Conv"
        and options.get("group", 1) == 1
        and set(options.get("strides", [1])) == {1}
        and set(options.get("dilations", [1])) == {1}
        and options.get("auto_pad", b"NOTSET") == b"NOTSET"
    )


def _merge_pointwise(graph: Graph) -> None:
    for first in [node for node in graph.nodes if _is_plain(node) and len(node.input) == 2]:
        users = graph.users(first.output[0])
        weight = graph.constants.get(first.input[1])
        if (
            weight is None
            or weight.shape[2:] != (1, 1)
            or any(attributes(first).get("pads", ()))
            or first.output[0] in graph.outputs
            or len(users) != 1
            or not _is_plain(users[0])
            or users[0].input[1] not in graph.constants
        ):
            continue
        [second] = users
        kernels = graph.constants[second.input[1]]
        if len(kernels) * weight.shape[1] * kernels[0, 0].size > weight.size + kernels.size:
            continue  # as in a bottleneck: the two multiply less
        product = np.einsum(
            "omyx,mi->oiyx", kernels.astype(np.float64), weight[:, :, 0, 0].astype(np.float64)
        )
        name = f"{first.name}.merged"
        graph.constants[name] = product.astype(np.float32)
        second.input[0], second.input[1] = first.input[0], name
        second.name = first.name  # several layers may share the weights of the second one
        graph.nodes.remove(first)


def _blocks(graph: Graph, shapes: Shapes) -> None:
    for node in [node for node in graph.nodes if _is_plain(node)]:
        weight = graph.constants.get(node.input[1])
        sizes = shapes.get(node.output[0], [])
        if (
            weight is None
            or weight.shape[0] != 1
            or weight.shape[2:] != (3, 3)
            or attributes(node).get("pads") != [1, 1, 1, 1]
            or len(sizes) != 4
            or any(not size or size % BLOCK for size in sizes[2:])
        ):
            continue
        kernels = np.zeros((BLOCK**2, weight.shape[1], BLOCK + 2, BLOCK + 2), np.float32)
        for number, (y, x) in enumerate(np.ndindex(BLOCK, BLOCK)):
            kernels[number, :, y : y + 3, x : x + 3] = weight[0]
        name, output = f"{node.name}.blocks", node.output[0]
        graph.constants[f"{name}.weight"] = kernels
        inputs = [node.input[0], f"{name}.weight"]
        if len(node.input) > 2:
            graph.constants[f"{name}.bias"] = np.repeat(graph.constants[node.input[2]], BLOCK**2)
            inputs.append(f"{name}.bias")
        graph.replace(node, [
            helper.make_node(
                "Conv", inputs, [name], node.name,
                kernel_shape=[BLOCK + 2] * 2, strides=[BLOCK] * 2, pads=[1] * 4,
            ),
            helper.make_node(
                "DepthToSpace", [name], [output], f"{name}.DepthToSpace", blocksize=BLOCK
            ),
        ])  # fmt: skip


def _split_outliers(graph: Graph, shapes: Shapes) -> list[str]:
    """Compute outlier channels apart, and return the names of the new float nodes."""
    names = []
    for layer in [node for node in graph.nodes if _is_plain(node)]:
        weight = graph.constants.get(layer.input[1])
        if weight is None or weight.ndim != 4 or len(graph.users(layer.input[1])) > 1:
            continue
        largest = np.abs(weight).max(axis=(0, 2, 3))
        channel = int(largest.argmax())
        path = _path(graph, layer, channel)
        if largest[channel] <= OUTLIER * np.median(largest) or path is None:
            continue
        name, output = f"{layer.name}.outlier", layer.output[0]
        value = f"{name}.value"
        resize = path.resize
        sizes = None if resize is None else _upsampling(resize, shapes)
        if resize is not None and sizes is None:
            continue
        constants = []
        for constant in path.producer.input[1:]:
            array = graph.constants[constant]
            own = slice(path.channel, path.channel + 1)
            constants.append(f"{constant}.outlier")
            graph.constants[constants[-1]] = array[own]
            graph.constants[constant] = np.where(_row(array, path.channel), 0, array)
        graph.constants[f"{name}.weight"] = weight[:, channel : channel + 1]
        graph.constants[layer.input[1]] = np.where(_row(weight[0], channel), 0, weight)
        nodes = [
            helper.make_node(
                "Conv", [path.producer.input[0], *constants], [f"{name}.sum"], f"{name}.producer",
                **attributes(path.producer),
            ),
            helper.make_node("Relu", [f"{name}.sum"], [value], f"{name}.Relu"),
        ]  # fmt: skip
        if sizes is not None:
            products = _products(graph, f"{name}.Resize", value, f"{name}.large", sizes)
            nodes += products
            names += [product.name for product in products]
            value = f"{name}.large"
        layer.output[0] = f"{name}.rest"
        graph.replace(layer, [
            *nodes,
            helper.make_node("Conv", [value, f"{name}.weight"], [name], name, **attributes(layer)),
            layer,
            helper.make_node("Add", [f"{name}.rest", name], [output], f"{name}.Add"),
        ])  # fmt: skip
        names += [name, f"{name}.Add"]
    return names


def _row(array: NDArray[Any], number: int) -> NDArray[np.bool_]:
    """Return a mask of `array` that selects one index of its first axis."""
    selected: NDArray[np.bool_] = np.arange(len(array)) == number
    return selected.reshape(-1, *[1] * (array.ndim - 1))


@dataclass(frozen=True, slots=True)
class Path:
    """The origin of an input channel of a layer: channel `channel` of the convolution `producer`.

    A ReLU follows the convolution, then `resize` if that is not None.
    """

    producer: onnx.NodeProto
    channel: int
    resize: onnx.NodeProto | None


def _path(graph: Graph, layer: onnx.NodeProto, channel: int) -> Path | None:
    """Trace an input channel of `layer` back to the convolution and ReLU that compute it.

    Between them may be a Resize and a Concat of channels. Returns None if other nodes are between
    them, or if other nodes (except Shape) read a result on the way or share the weights.
    """
    value, resize = layer.input[0], None
    maker = graph.maker(value)
    if maker is not None and maker.op_type == "Concat" and len(graph.users(value)) == 1:
        if attributes(maker)["axis"] != 1:
            return None
        for value in maker.input:
            width = _width(graph, value)
            if width is None:
                return None
            if channel < width:
                break
            channel -= width
        maker = graph.maker(value)
    if maker is not None and maker.op_type == "Resize" and len(graph.users(value)) == 1:
        resize, value = maker, maker.input[0]
        maker = graph.maker(value)
    readers = [node for node in graph.users(value) if node.op_type != "Shape"]
    if maker is None or maker.op_type != "Relu" or len(readers) != 1:
        return None
    producer = graph.maker(maker.input[0])
    if producer is None or producer.op_type != "Conv" or len(graph.users(maker.input[0])) != 1:
        return None
    if any(len(graph.users(name)) > 1 for name in producer.input[1:]) or not _is_plain(producer):
        return None
    return Path(producer, channel, resize)


def _width(graph: Graph, value: str) -> int | None:
    """Return the number of channels of a value that a convolution computes; None if unknown."""
    while (maker := graph.maker(value)) is not None:
        if maker.op_type == "Conv" and maker.input[1] in graph.constants:
            return int(graph.constants[maker.input[1]].shape[0])
        if maker.op_type not in ("Relu", "Resize", "MaxPool"):
            break
        value = maker.input[0]
    return None


def _resizes(graph: Graph, shapes: Shapes) -> list[str]:
    """Rewrite the bilinear upsamplings, and return the names of the new nodes."""
    names = []
    for node in [node for node in graph.nodes if node.op_type == "Resize"]:
        sizes = _upsampling(node, shapes)
        if sizes is None:
            continue
        before, after = sizes
        if before[1] == 1:
            products = _products(graph, node.name, node.input[0], node.output[0], sizes)
            graph.replace(node, products)
            names += [product.name for product in products]
        else:
            factors = f"{node.name}.factors"
            graph.constants[factors] = np.divide(after[2:], before[2:]).astype(np.float32)
            graph.constants[factors] = np.append(np.ones(2, np.float32), graph.constants[factors])
            del node.input[1:]
            node.input.extend(["", factors])
    return names


def _upsampling(node: onnx.NodeProto, shapes: Shapes) -> tuple[list[int], list[int]] | None:
    """Return the shapes before and after a bilinear resize by whole factors; None for others."""
    options = attributes(node)
    before, after = shapes.get(node.input[0], []), shapes.get(node.output[0], [])
    if (
        options.get("mode") != b"linear"
        or options.get("coordinate_transformation_mode", b"half_pixel") != b"half_pixel"
        or len(before) != 4
        or len(after) != 4
        or not all((*before[1:], *after[1:]))
        or before[1] != after[1]
        or any(large % small for large, small in zip(after[2:], before[2:], strict=True))
    ):
        return None
    return before, after


def _convolve_before_upsampling(graph: Graph, shapes: Shapes) -> None:
    for layer in [node for node in graph.nodes if _is_plain(node)]:
        concat, weight = graph.maker(layer.input[0]), graph.constants.get(layer.input[1])
        if (
            weight is None
            or weight.shape[2:] != (3, 3)
            or attributes(layer).get("pads") != [1, 1, 1, 1]
            or len(graph.users(layer.input[1])) > 1
            or concat is None
            or concat.op_type != "Concat"
            or attributes(concat)["axis"] != 1
            or len(concat.input) != 2
            or graph.users(concat.output[0]) != [layer]
        ):
            continue
        resize = graph.maker(concat.input[0])
        sizes = resize and resize.op_type == "Resize" and _upsampling(resize, shapes)
        if not resize or not sizes or graph.users(resize.output[0]) != [concat]:
            continue
        before, after = sizes
        channels, output = before[1], layer.output[0]
        products = weight[:, :channels].size * after[2] * after[3]
        if (
            [2 * size for size in before[2:]] != after[2:]
            or len(weight) > channels  # more channels would have to be upsampled
            or 3 / 4 * products < SAVED_PRODUCTS
        ):
            continue
        # A weight's neighbour is half a pixel away, before the upsampling.
        shift = np.array([HALF_PIXEL, (0, 1, 0), HALF_PIXEL[::-1]])
        name = f"{layer.name}.before"
        graph.constants[f"{name}.weight"] = np.einsum(
            "oiyx,yv,xw->oivw", weight[:, :channels].astype(np.float64), shift, shift
        ).astype(np.float32)
        graph.constants[layer.input[1]] = weight[:, channels:]
        layer.input[0], layer.output[0] = concat.input[1], f"{name}.rest"
        options = attributes(layer)
        graph.replace(layer, [
            helper.make_node(
                "Conv", [resize.input[0], f"{name}.weight"], [name], name, **options
            ),
            helper.make_node(
                "Resize", [name, *resize.input[1:]], [f"{name}.Resize"], f"{name}.Resize",
                **attributes(resize),
            ),
            layer,
            helper.make_node("Add", [f"{name}.rest", f"{name}.Resize"], [output], f"{name}.Add"),
        ])  # fmt: skip


def _products(
    graph: Graph, name: str, value: str, output: str, sizes: tuple[list[int], list[int]]
) -> list[onnx.NodeProto]:
    """Return the two matrix products that resize each channel of `value`."""
    before, after = sizes
    graph.constants[f"{name}.columns"] = bilinear(before[3], after[3]).T
    graph.constants[f"{name}.rows"] = bilinear(before[2], after[2])
    wide = f"{name}.wide"
    return [
        helper.make_node("MatMul", [value, f"{name}.columns"], [wide], wide),
        helper.make_node("MatMul", [f"{name}.rows", wide], [output], name),
    ]


def bilinear(size: int, larger: int) -> NDArray[np.float32]:
    """Return the matrix (larger, size) that resizes a vector bilinearly (half-pixel centres)."""
    centres = np.clip((np.arange(larger) + 0.5) * size / larger - 0.5, 0, size - 1)
    below = np.floor(centres).astype(np.int64)
    above = np.minimum(below + 1, size - 1)
    matrix = np.zeros((larger, size))
    rows = np.arange(larger)
    np.add.at(matrix, (rows, below), 1 - (centres - below))
    np.add.at(matrix, (rows, above), centres - below)
    return matrix.astype(np.float32)

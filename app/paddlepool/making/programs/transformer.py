"""Quantises the embeddings and the matrix products of a transformer.

Products become MatMulIntegerToFloat, an operator of ONNX Runtime that adds the bias in the same
pass. OpenVINO reads it, too. No result depends on the other texts of a batch.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.making.programs.onnx_graph import Graph
from paddlepool.making.programs.qdq import LEVELS, quantised_weight

DOMAIN = "com.microsoft"
EMBEDDING_LEVELS = 127
STEADY = ("LayerNormalization", "Reshape")
"""Operators whose results have rows of similar size: normalised values, and the mixed values of an
attention. Such an input of a product has one scale, unless it is of one token for each text, as in
BERT's last layer. Others have a scale for each row: those of an activation function differ by a
factor of 100."""
ZERO, ONE_SIDED_ZERO = 128, 32
"""The uint8 numbers that stand for 0, the second one for values of at least LEAST_GELU."""
LEAST_GELU = -0.17
LEAST_ROW = 1e-12
"""Least divisor of a row, because a row of zeros cannot be divided by its largest value."""
LEAST_ONE_SIDED_ROW = 1.19
"""Least divisor of a row of one-sided values: LEAST_GELU then needs the number ONE_SIDED_ZERO."""
SEQUENCES, TOKENS, SEED = 64, 32, 20


class Range(NamedTuple):
    """The smallest value of an array [N,L,width], the largest size of one, and the length L."""

    least: float
    largest: float
    length: int


def random_tokens(vocabulary: int, positions: int) -> Array:
    """Return sequences of token ids [N,L], which are equal on every call."""
    generator = np.random.default_rng(SEED)
    return generator.integers(0, vocabulary, (SEQUENCES, min(TOKENS, positions)))


def measured_ranges(
    model: onnx.ModelProto, values: Sequence[str], feed: Tensors
) -> Mapping[str, Range]:
    """Return the ranges of named values of a model in one run with the inputs `feed`."""
    import onnxruntime

    model = deepcopy(model)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in values)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    arrays = session.run(list(values), dict(feed))
    return {
        name: Range(float(array.min()), float(np.abs(array).max()), array.shape[1])
        for name, array in zip(values, arrays, strict=True)
    }


def quantise_embeddings(graph: Graph) -> None:
    """Store embeddings, float32 tables that a Gather reads, in int8 with a scale for each row.

    Changes `graph` in place. One scale for all rows would be inaccurate, because the embeddings of
    different tokens differ in size by much more than the values of one embedding.
    """
    for node in list(graph.nodes):
        table = graph.constants.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or table.ndim != 2 or table.dtype != np.float32:
            continue
        scale = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-12) / EMBEDDING_LEVELS
        name, rows = node.input[0], node.output[0]
        graph.constants[f"{name}.int8"] = np.rint(table / scale).astype(np.int8)
        graph.constants[f"{name}.scale"] = scale.astype(np.float32)
        node.input[0], node.output[0] = f"{name}.int8", f"{rows}.int8"
        graph.insert_after(f"{rows}.int8", [
            helper.make_node(
                "Cast", [f"{rows}.int8"], [f"{rows}.cast"], f"{rows}.cast",
                to=onnx.TensorProto.FLOAT,
            ),
            helper.make_node(
                "Gather", [f"{name}.scale", node.input[1]], [f"{rows}.scale"], f"{rows}.scale"
            ),
            helper.make_node("Mul", [f"{rows}.cast", f"{rows}.scale"], [rows], f"{rows}.float"),
        ])  # fmt: skip


def quantise_products(
    graph: Graph, products: Sequence[onnx.NodeProto], ranges: Mapping[str, Range]
) -> None:
    """Quantise `products`, MatMul nodes of the graph, in place; `ranges` has their inputs.

    STEADY says which inputs have one scale, from their range. Each row of another input gets its
    own scale at every run: it is divided by its largest absolute value, and its results are
    multiplied by that value.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in products:
        readers.setdefault(node.input[0], []).append(node)
    for value, nodes in readers.items():
        maker = graph.maker(value)
        if maker is not None and maker.op_type in STEADY and ranges[value].length > 1:
            # Two digits are the same on all processors.
            largest = float(f"{ranges[value].largest:.2g}")
            quantised = _quantise(graph, value, largest / (ZERO - 1), ZERO)
            for node in nodes:
                _multiply_integers(graph, node, quantised, value, bias=_take_bias(graph, node))
            graph.insert_after(value, [quantised])
        else:
            _quantise_rows(graph, value, nodes, one_sided=ranges[value].least >= LEAST_GELU)


def _quantise_rows(
    graph: Graph, value: str, nodes: Sequence[onnx.NodeProto], *, one_sided: bool
) -> None:
    largest, relative, size = f"{value}.largest", f"{value}.relative", f"{value}.size"
    zero, least = (ONE_SIDED_ZERO, LEAST_ONE_SIDED_ROW) if one_sided else (ZERO, LEAST_ROW)
    graph.constants[f"{value}.least"] = np.array(least, np.float32)
    # From opset 18 on, the axes of a reduction are an input.
    axes_are_input = any(not opset.domain and opset.version >= 18 for opset in graph.opsets)
    if axes_are_input:
        graph.constants["row_axes"] = np.array([-1])
    before = [
        helper.make_node(
            "ReduceMax", [value if one_sided else size, *(["row_axes"] if axes_are_input else [])],
            [f"{value}.most"], f"{value}.ReduceMax", keepdims=1,
            **({} if axes_are_input else {"axes": [-1]}),
        ),
        helper.make_node("Max", [f"{value}.most", f"{value}.least"], [largest], f"{value}.Max"),
        # A product with the reciprocal takes less time than a division.
        helper.make_node("Reciprocal", [largest], [f"{value}.by"], f"{value}.Reciprocal"),
        helper.make_node("Mul", [value, f"{value}.by"], [relative], f"{value}.Mul"),
    ]  # fmt: skip
    if not one_sided:
        before.insert(0, helper.make_node("Abs", [value], [size], f"{value}.Abs"))
    quantised = _quantise(graph, relative, 1 / (255 - zero), zero)
    for node in nodes:
        output = node.output[0]
        _multiply_integers(graph, node, quantised, relative, bias=None)
        node.output[0] = f"{output}.relative"
        scaled = helper.make_node("Mul", [node.output[0], largest], [output], f"{output}.Mul")
        graph.insert_after(node.output[0], [scaled])
    graph.insert_after(value, [*before, quantised])


def _quantise(graph: Graph, value: str, scale: float, zero: int) -> onnx.NodeProto:
    """Return the node that quantises a value; `zero` is the number that stands for 0."""
    graph.constants[f"{value}.scale"] = np.array(scale, np.float32)
    graph.constants[f"{value}.zero"] = np.array(zero, np.uint8)
    inputs = [value, f"{value}.scale", f"{value}.zero"]
    return helper.make_node(
        "QuantizeLinear", inputs, [f"{value}.quantised"], f"{value}.QuantizeLinear"
    )


def _multiply_integers(
    graph: Graph, node: onnx.NodeProto, quantised: onnx.NodeProto, value: str, *, bias: str | None
) -> None:
    """Turn a MatMul into one of int8 weights; `quantised` quantises its input `value`."""
    name = node.input[1]
    weight, scale = quantised_weight(graph.constants[name], axis=1, levels=LEVELS, pairs=True)
    graph.constants |= {
        f"{name}.int8": weight,
        f"{name}.scale": scale,
        f"{name}.zero": np.zeros(scale.shape, np.int8),
    }
    del node.input[:]
    node.input.extend([
        quantised.output[0], f"{name}.int8", f"{value}.scale", f"{name}.scale",
        f"{value}.zero", f"{name}.zero",
    ])  # fmt: skip
    if bias is not None:
        node.input.append(bias)
    node.op_type, node.domain = "MatMulIntegerToFloat", DOMAIN


def _take_bias(graph: Graph, node: onnx.NodeProto) -> str | None:
    """Remove the addition of a constant row to the result of `node`, and return the constant.

    Returns None, without a change, if nothing else or more than that reads the result.
    """
    users = graph.users(node.output[0])
    if len(users) != 1 or users[0].op_type != "Add" or node.output[0] in graph.outputs:
        return None
    for name in users[0].input:
        if name in graph.constants and graph.constants[name].ndim == 1:
            node.output[0] = users[0].output[0]
            graph.nodes.remove(users[0])
            return str(name)
    return None

"""Prepares a transformer's graph for int8, so that quantising changes its outputs less.

A quantised activation has one scale for all channels, and a transformer has channels a hundred
times as large as others. Smoothing divides each channel by a factor and multiplies the weights that
read it by the same factor (SmoothQuant, https://arxiv.org/abs/2211.10438).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from app.contracts.errors import ExportError
from app.making.programs.onnx_graph import Graph

EMBEDDING_LEVELS = 127


def readers(graph: Graph, value: str) -> list[onnx.NodeProto]:
    """The matrix products that read a value and have constant weights of shape [in, out]."""
    return [
        node
        for node in graph.users(value)
        if node.op_type == "MatMul"
        and node.input[0] == value
        and node.input[1] in graph.constants
        and graph.constants[node.input[1]].ndim == 2
    ]


def smooth(graph: Graph, exponents: Mapping[str, Sequence[float]]) -> None:
    """Divide each channel by 2 to the power of its exponent; scale the weights to compensate.

    Raises ExportError if the graph is not the one for which the exponents were measured.
    """
    for value, powers in exponents.items():
        maker, found = graph.maker(value), readers(graph, value)
        # numpy's float32 function differs in the last bit from one instruction set to another.
        factors = np.exp2(np.array(powers, np.float64)).astype(np.float32)
        if maker is None or any(
            graph.constants[node.input[1]].shape[0] != len(factors) for node in found
        ):
            raise ExportError(f"the measured factors belong to another graph: no {value}")
        smoothed = f"{value}.smoothed"
        graph.nodes.insert(
            graph.nodes.index(maker) + 1, _divided(graph, maker, value, smoothed, factors)
        )
        for node in found:
            weight = f"{node.input[1]}.{node.name}"
            graph.constants[weight] = graph.constants[node.input[1]] * factors[:, None]
            node.input[0], node.input[1] = smoothed, weight


def _divided(
    graph: Graph, maker: onnx.NodeProto, value: str, smoothed: str, factors: NDArray[np.float32]
) -> onnx.NodeProto:
    """A node that gives the value divided by the factors."""
    if maker.op_type != "LayerNormalization":
        graph.constants[f"{smoothed}.factors"] = 1 / factors
        inputs = [value, f"{smoothed}.factors"]
        return helper.make_node("Mul", inputs, [smoothed], name=smoothed)
    # A second normalisation, with divided parameters, takes less time than a multiplication. The
    # first one stays, because the residual sum reads its value.
    node = onnx.NodeProto()
    node.CopyFrom(maker)
    node.name = node.output[0] = smoothed
    for place, name in list(enumerate(maker.input))[1:]:
        node.input[place] = f"{smoothed}.{place}"
        graph.constants[node.input[place]] = graph.constants[name] / factors
    return node


def quantise_embeddings(graph: Graph) -> list[str]:
    """Store embeddings in int8 with a scale for each row; returns the names of their lookups.

    One scale for all rows would be inaccurate, because the embeddings of different tokens differ in
    size by much more than the values of one embedding.
    """
    lookups = []
    for node in list(graph.nodes):
        table = graph.constants.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or table.ndim != 2 or table.dtype != np.float32:
            continue
        scale = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-12) / EMBEDDING_LEVELS
        name, rows = node.input[0], node.output[0]
        graph.constants[f"{name}.int8"] = np.rint(table / scale).astype(np.int8)
        graph.constants[f"{name}.scale"] = scale.astype(np.float32)
        node.input[0], node.output[0] = f"{name}.int8", f"{rows}.int8"
        place = graph.nodes.index(node) + 1
        graph.nodes[place:place] = [
            helper.make_node(
                "Cast", [f"{rows}.int8"], [f"{rows}.cast"], f"{rows}.cast",
                to=onnx.TensorProto.FLOAT,
            ),
            helper.make_node(
                "Gather", [f"{name}.scale", node.input[1]], [f"{rows}.scale"], f"{rows}.scale"
            ),
            helper.make_node("Mul", [f"{rows}.cast", f"{rows}.scale"], [rows], f"{rows}.float"),
        ]  # fmt: skip
        lookups += [node.name, f"{rows}.scale"]
    return lookups

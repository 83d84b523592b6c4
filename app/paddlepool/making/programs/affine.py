"""Folds constant affine operations into the convolutions beside them; float32 results stay equal.

PP-LCNetV3 multiplies and adds learned constants before and after each activation. If they stay
nodes of their own, an int8 program quantises them as well.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from paddlepool.making.programs.onnx_graph import Graph, attributes

Floats = NDArray[np.float64]
EPSILON = 1e-5
"""Default of ONNX for a batch normalisation."""


def fold_affine(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a simplified() graph whose convolutions include their affine neighbours.

    These are batch normalisations, and products and sums with a constant for each channel or one
    for all. What precedes a convolution is folded only into one of 1×1 without padding and groups:
    padding is not multiplied.
    """
    graph = Graph(deepcopy(model))
    for layer in [node for node in graph.nodes if node.op_type == "Conv"]:
        names = layer.input[1:]
        if any(name not in graph.constants for name in names):
            continue
        weight = graph.constants[names[0]].astype(np.float64)
        bias: Floats = np.zeros(len(weight))
        if len(names) > 1:
            bias = graph.constants[names[1]].astype(np.float64)
        changed = False
        while (after := _only_user(graph, layer.output[0])) is not None:
            factor, offset = _affine(graph, after, layer.output[0])
            if factor is None:
                break
            weight = weight * np.broadcast_to(factor, bias.shape).reshape(-1, 1, 1, 1)
            bias, changed = bias * factor + offset, True
            layer.output[0] = after.output[0]
            graph.nodes.remove(after)
        while _is_pointwise(layer, weight):
            before = graph.maker(layer.input[0])
            if before is None or _only_user(graph, layer.input[0]) is None:
                break
            source = next((name for name in before.input if name not in graph.constants), "")
            factor, offset = _affine(graph, before, source)
            if factor is None:
                break
            width = weight.shape[1]
            bias = bias + weight[..., 0, 0] @ np.broadcast_to(offset, width)
            weight = weight * np.broadcast_to(factor, width).reshape(-1, 1, 1)
            layer.input[0], changed = source, True
            graph.nodes.remove(before)
        if changed:
            own = [f"{layer.name}.weight.folded", f"{layer.name}.bias.folded"]
            graph.constants |= dict(zip(own, (weight.astype("f4"), bias.astype("f4")), strict=True))
            del layer.input[1:]
            layer.input.extend(own)
    done = graph.model()
    onnx.checker.check_model(done)
    return done


def _only_user(graph: Graph, value: str) -> onnx.NodeProto | None:
    users = graph.users(value)
    return users[0] if len(users) == 1 and value not in graph.outputs else None


def _is_pointwise(layer: onnx.NodeProto, weight: Floats) -> bool:
    options = attributes(layer)
    return (
        weight.shape[2:] == (1, 1)
        and options.get("group", 1) == 1
        and not any(options.get("pads", ()))
        and options.get("auto_pad", b"NOTSET") == b"NOTSET"
    )


def _affine(graph: Graph, node: onnx.NodeProto, source: str) -> tuple[Any, Any]:
    """Return the factor and the offset that `node` applies to each channel of `source`.

    They are float64, one for each channel or one for all. Returns (None, None) for other nodes.
    """
    others = [graph.constants.get(name) for name in node.input if name != source]
    if node.op_type == "BatchNormalization" and all(other is not None for other in others):
        scale, shift, mean, variance = (np.asarray(other, np.float64) for other in others)
        options = attributes(node)
        factor = scale / np.sqrt(variance + options.get("epsilon", EPSILON))
        return factor, shift - mean * factor
    if node.op_type in ("Mul", "Add") and len(others) == 1 and others[0] is not None:
        shape = others[0].shape
        if others[0].size == 1 or (len(shape) in (3, 4) and shape[-3] == others[0].size):
            constant = others[0].astype(np.float64).reshape(-1)
            return (constant, 0.0) if node.op_type == "Mul" else (1.0, constant)
    return None, None

"""Makes int8 programs with QuantizeLinear and DequantizeLinear nodes.

An engine computes a layer in int8 if its input and its weights both come from a DequantizeLinear.
Weights are quantised here, for each output channel. Activations need ranges, which NNCF (extra
`quantize`) measures on data. Some layers must stay float.
"""

import hashlib
import logging
import random
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from paddlepool.contracts.errors import ConfigError, ExportError
from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.engine.backends.onnx import imported_openvino
from paddlepool.making.programs.onnx_graph import Graph

PRESET = "mixed"
SEED = 20
TOOLS = ("nncf", "onnx", "openvino")
"""Packages whose versions a manifest records."""
LEVELS = 127
FIRST_LEVELS = 64
"""Levels of the first layer's weights. A processor without VNNI adds pairs of products in 16 bits;
with more levels, the sum would overflow if an input uses its whole range."""

PAIR_LEVELS = 127.99
"""Limit for the sum of the sizes of two neighbouring weights of a matrix product before rounding.

After rounding, the sum is at most 128. The sum of their products with any two inputs then fits into
16 bits."""

SMALLEST = 1e-3
"""If a channel's largest weight is below this share of the layer's largest weight, the channel's
scale is computed from that share instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """How the result of a node or an input is quantised: to int8 if `signed`, else to uint8.

    `value` is its name. `readers` are the names of the nodes that read the quantised value; other
    nodes read it in float. With `factors`, one for each channel, the value is multiplied by them
    before it is quantised, and the weights of the readers, which are convolutions, are divided by
    them: channels of very different size then share one scale.
    """

    value: str
    scale: float
    zero_point: int
    signed: bool
    readers: tuple[str, ...]
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """How activations are quantised, by ranges measured on data, and the layers left in float."""

    activations: tuple[Activation, ...]
    float_layers: tuple[str, ...]


def quantised(model: onnx.ModelProto, ranges: Ranges) -> onnx.ModelProto:
    """Return a copy of a simplified() graph with its layers in int8, quantised by `ranges`.

    Raises ExportError if the ranges belong to another graph.
    """
    graph = Graph(deepcopy(model))
    _check_names(graph, ranges)
    for entry in ranges.activations:
        _divide_weights(graph, entry)
    for number, (layer, weight) in enumerate(graph.layers()):
        if layer.name not in ranges.float_layers:
            _quantise_weight(graph, layer, weight, levels=LEVELS if number else FIRST_LEVELS)
    added = [(entry.value, _quantise_value(graph, entry)) for entry in ranges.activations]
    for value, nodes in reversed(added):
        graph.insert_after(value, nodes)
    _resize_quantised(graph)
    done = graph.model()
    onnx.checker.check_model(done)
    return done


def read_ranges(model: onnx.ModelProto, quantised_model: onnx.ModelProto) -> Ranges:
    """Return the ranges and float layers of `quantised_model`, which a quantiser made of `model`.

    `model` is a simplified() graph; quantised() can apply the ranges to it again. Raises
    ExportError if `quantised_model` has no layer with the name of a layer of `model`.
    """
    plain, quantised_graph = Graph(model), Graph(quantised_model)
    makers = {name: node for node in quantised_graph.nodes for name in node.output}
    quantised_nodes = {node.name: node for node in quantised_graph.nodes}
    constants = quantised_graph.constants
    activations: dict[str, tuple[onnx.NodeProto, list[str]]] = {}
    useful = _before_int8(plain, quantised_nodes)
    floats = []
    for node in plain.nodes:
        weight, other = plain.weight_of(node), quantised_nodes.get(node.name)
        if other is None:
            if weight:
                raise ExportError(
                    f"the layer {node.name!r} has no counterpart in the quantised graph: no two "
                    "layers of one name, or without one, as in branches, can be quantised"
                )
            continue
        if weight and weight in other.input:
            floats.append(node.name)
        if node.name not in useful:
            continue
        summed = _summed_by_layer(plain, node)
        for source, name in zip(node.input, other.input, strict=True):
            quantise = _quantising(makers, name)
            if quantise is not None and quantise.input[0] == source and source != summed:
                activations.setdefault(source, (quantise, []))[1].append(node.name)
    return Ranges(
        activations=tuple(
            Activation(
                value=value,
                scale=float(f"{float(constants[quantise.input[1]]):.6g}"),
                zero_point=int(constants[quantise.input[2]]),
                signed=constants[quantise.input[2]].dtype == np.int8,
                readers=tuple(readers),
            )
            for value, (quantise, readers) in activations.items()
        ),
        float_layers=tuple(floats),
    )


def _summed_by_layer(plain: Graph, node: onnx.NodeProto) -> str | None:
    """Return the addend that a layer computes for the addition `node` alone; None without one.

    An engine adds the other addend in the layer, before it rounds, so this one needs no scale.
    """
    if node.op_type == "Add":
        for value in node.input:
            maker = plain.maker(value)
            if maker is not None and plain.weight_of(maker) and plain.users(value) == [node]:
                return str(value)
    return None


def _before_int8(plain: Graph, quantised_nodes: Mapping[str, onnx.NodeProto]) -> set[str]:
    """Return the names of the layers in int8 and of all nodes before them.

    Quantising what only other nodes read loses accuracy and saves no time.
    """
    names: set[str] = set()
    values: set[str] = set()
    for node in reversed(plain.nodes):
        weight, other = plain.weight_of(node), quantised_nodes.get(node.name)
        small = weight and other is not None and weight not in other.input
        if small or values.intersection(node.output):
            names.add(node.name)
            values.update(node.input)
    return names


def _quantising(makers: Mapping[str, onnx.NodeProto], value: str) -> onnx.NodeProto | None:
    """Return the QuantizeLinear node before the DequantizeLinear node that makes `value`.

    Returns None if no such nodes make it. `makers` has the node that makes each value.
    """
    maker = makers.get(value)
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    before = makers.get(maker.input[0])
    return before if before is not None and before.op_type == "QuantizeLinear" else None


def _check_names(graph: Graph, ranges: Ranges) -> None:
    nodes = {node.name for node in graph.nodes}
    values = {name for node in graph.nodes for name in (*node.input, *node.output)}
    named = set(ranges.float_layers)
    named |= {reader for entry in ranges.activations for reader in entry.readers}
    measured = {entry.value for entry in ranges.activations}
    if unknown := sorted((named - nodes) | (measured - values)):
        raise ExportError(
            f"the measured ranges are of another graph: {len(unknown)} of its names, such as "
            f"{unknown[0]}, are not in this one"
        )


def _divide_weights(graph: Graph, activation: Activation) -> None:
    """Divide the weights of the readers by the activation's factors, channel by channel."""
    for layer in graph.nodes:
        if activation.factors and layer.name in activation.readers:
            name = f"{layer.input[1]}.{layer.name}.divided"
            factors = np.array(activation.factors, np.float64).reshape(-1, 1, 1)
            graph.constants[name] = (graph.constants[layer.input[1]] / factors).astype(np.float32)
            layer.input[1] = name


def quantised_weight(
    weight: Array, *, axis: int, levels: int, pairs: bool = False
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the int8 form of a weight, and the scale of each index of `axis`.

    With `pairs`, for the two axes of a matrix product, the sizes of two neighbouring weights of a
    column add up to at most PAIR_LEVELS before they are rounded.
    """
    weight = weight.astype(np.float32)
    others = tuple(other_axis for other_axis in range(weight.ndim) if other_axis != axis)
    largest = np.abs(weight).max(axis=others)
    scale = np.maximum(largest, max(float(largest.max()) * SMALLEST, 1e-12)) / levels
    if pairs:
        sizes = np.abs(np.pad(weight, ((0, len(weight) % 2), (0, 0))))
        scale = np.maximum(scale, (sizes[::2] + sizes[1::2]).max(axis=0) / PAIR_LEVELS)
    shape = [1] * weight.ndim
    shape[axis] = -1
    rounded = np.clip(np.rint(weight / scale.reshape(shape)), -levels, levels).astype(np.int8)
    return rounded, scale.astype(np.float32)


def _quantise_weight(graph: Graph, layer: onnx.NodeProto, name: str, *, levels: int) -> None:
    axis = _output_axis(layer, graph.constants[name].ndim)
    rounded, scale = quantised_weight(graph.constants[name], axis=axis, levels=levels)
    place = list(layer.input).index(name)
    own = f"{name}.{layer.name}" if len(graph.users(name)) > 1 else name
    graph.constants[f"{own}.int8"] = rounded
    graph.constants[f"{own}.scale"] = scale
    graph.constants[f"{own}.zero"] = np.zeros(scale.shape, np.int8)
    layer.input[place] = f"{own}.float"
    graph.nodes.insert(
        graph.nodes.index(layer),
        helper.make_node(
            "DequantizeLinear",
            [f"{own}.int8", f"{own}.scale", f"{own}.zero"],
            [f"{own}.float"],
            name=f"{own}.dequantise",
            axis=axis,
        ),
    )


def _output_axis(layer: onnx.NodeProto, axes: int) -> int:
    if layer.op_type == "MatMul":
        return axes - 1
    if layer.op_type == "Gemm":
        return 0 if any(entry.name == "transB" and entry.i for entry in layer.attribute) else 1
    return 1 if layer.op_type == "ConvTranspose" else 0


def _quantise_value(graph: Graph, activation: Activation) -> list[onnx.NodeProto]:
    value, kind = activation.value, np.int8 if activation.signed else np.uint8
    graph.constants[f"{value}.scale"] = np.array(activation.scale, np.float32)
    graph.constants[f"{value}.zero"] = np.array(activation.zero_point, kind)
    for node in graph.nodes:
        if node.name in activation.readers:
            for place, name in enumerate(node.input):
                if name == value:
                    node.input[place] = f"{value}.dequantised"
    scale = [f"{value}.scale", f"{value}.zero"]
    before = []
    if activation.factors:
        factors = np.array(activation.factors, np.float32).reshape(1, -1, 1, 1)
        graph.constants[f"{value}.factors"] = factors
        scaled = f"{value}.scaled"
        before = [helper.make_node("Mul", [value, f"{value}.factors"], [scaled], name=scaled)]
        value = scaled
    return before + [
        helper.make_node(operator, [source, *scale], [target], name=f"{value}.{operator}")
        for operator, source, target in (
            ("QuantizeLinear", value, f"{value}.quantised"),
            ("DequantizeLinear", f"{value}.quantised", f"{activation.value}.dequantised"),
        )
    ]


def _resize_quantised(graph: Graph) -> None:
    """Let each resize read and write int8 or uint8, if its input and its result are quantised so.

    The input gets the scale of the result, which a concatenation shares.
    """
    makers = {name: node for node in graph.nodes for name in node.output}
    for resize in [node for node in graph.nodes if node.op_type == "Resize"]:
        before, users = makers.get(resize.input[0]), graph.users(resize.output[0])
        if before is None or before.op_type != "DequantizeLinear" or len(users) != 1:
            continue
        [after], quantise = users, makers.get(before.input[0])
        if after.op_type != "QuantizeLinear" or quantise is None:
            continue
        if len({graph.constants[node.input[2]].dtype for node in (quantise, after)}) > 1:
            continue
        for node in (quantise, before):
            node.input[1:] = after.input[1:]
        resize.input[0], resize.output[0] = before.input[0], after.output[0]
        graph.nodes.remove(after)


def chosen(files: Sequence[Path], count: int) -> list[Path]:
    """Return `count` of the files, sorted, or all if fewer; equal calls choose equal files."""
    ordered = sorted(files)
    return sorted(random.Random(SEED).sample(ordered, min(count, len(ordered))))  # noqa: S311


def digest_of(files: Sequence[Path]) -> str:
    """Return one sha256 for the contents of files; their names and order do not matter."""
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def measure_ranges(
    model: onnx.ModelProto, feeds: Sequence[Tensors], *, float_nodes: Sequence[str] = ()
) -> Ranges:
    """Measure with NNCF the ranges of all layers that it can quantise, except `float_nodes`.

    `model` is a simplified() graph and stays unchanged; `feeds` are sample inputs. Bias correction
    is off: on U²-Netp it changes the masks more than quantising does. Raises ConfigError if a
    package is missing, and ExportError as read_ranges() does.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NNCF's dependencies warn about each other
            imported_openvino()
            import nncf
            from nncf.quantization.advanced_parameters import QuantizationParameters
    except ImportError as error:
        raise ConfigError(
            "quantising with calibration data needs the package nncf (extra quantize)"
        ) from error
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised_model = nncf.quantize(
            model,
            nncf.Dataset(list(feeds)),
            preset=nncf.QuantizationPreset(PRESET),
            ignored_scope=nncf.IgnoredScope(names=list(float_nodes)) if float_nodes else None,
            subset_size=len(feeds),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                disable_bias_correction=True,
                # By default, the input of a depthwise convolution gets a scale for each channel.
                activations_quantization_params=QuantizationParameters(per_channel=False),
            ),
        )
    return read_ranges(model, quantised_model)


def layers_of(model: onnx.ModelProto) -> list[str]:
    return [layer.name for layer, _ in Graph(model).layers()]


SHARE = 0.1
"""A limit of find_float_layers(), as a share of the budget or of the worst stage's loss, whichever
is larger. A stage or a layer that loses no more, if it alone is in int8, stays in int8."""


def restricted(ranges: Ranges, floats: Collection[str]) -> Ranges:
    """Return ranges in which the layers `floats` are float layers, too.

    An activation that only such layers read is left out, so it also stays in float.
    """
    activations = []
    for activation in ranges.activations:
        readers = tuple(name for name in activation.readers if name not in floats)
        if readers:
            activations.append(replace(activation, readers=readers))
    merged = dict.fromkeys((*ranges.float_layers, *floats))
    return Ranges(activations=tuple(activations), float_layers=tuple(merged))


def find_float_layers(
    model: onnx.ModelProto,
    ranges: Ranges,
    budget: float,
    *,
    loss_of: Callable[[onnx.ModelProto], float],
    show: Callable[[str, float], None],
) -> Ranges:
    """Return the ranges with some layers in float, to bring the loss within `budget`.

    Nothing changes if the program with every layer in int8 is within it. Otherwise, measure the
    loss with only one stage in int8, for each stage (layers whose names have the same first part),
    and then with only one layer in int8, for each layer of the stages above the limit of SHARE.
    Make the layers above this limit float one after another, the worst first, until the loss is
    within the budget. If it never is, all of them become float, and the loss exceeds the budget.

    `loss_of` measures a program; `show` is called with each program's description and loss.
    """
    every = [name for name in layers_of(model) if name not in ranges.float_layers]

    def measured(what: str, floats: Sequence[str]) -> float:
        loss = loss_of(quantised(model, restricted(ranges, floats)))
        show(what, loss)
        return loss

    def alone(what: str, layers: Sequence[str]) -> float:
        return measured(f"only {what}", [name for name in every if name not in layers])

    loss = measured("everything", ())
    if loss <= budget:
        return ranges
    stages: dict[str, list[str]] = {}
    for layer in every:
        stages.setdefault(layer.partition(".")[0], []).append(layer)
    by_stage = {stage: alone(stage, layers) for stage, layers in stages.items()}
    least = SHARE * max(budget, *by_stage.values())
    own: dict[str, float] = {}
    for stage, layers in stages.items():
        if len(layers) == 1:
            own[layers[0]] = by_stage[stage]
        elif by_stage[stage] > least:
            own |= {layer: alone(layer, [layer]) for layer in layers}
    floats: list[str] = []
    for layer in sorted(own, key=own.__getitem__, reverse=True):
        if own[layer] > least and loss > budget:
            floats.append(layer)
            loss = measured(f"float: {', '.join(floats)}", floats)
    return restricted(ranges, floats)

"""Simplifies an ONNX graph: removes an exporter's leftovers, and names every node.

A layer is named after its weight, any other node after its operator.

A bias that is written as an addition after its convolution is moved into the convolution, because a
quantiser would quantise the addition.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
FOLDED = ("Cast", "Concat", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that converters apply to constants."""


class Graph:
    """The nodes and constants of a model, to be changed; model() returns the changed model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self.opsets = list(model.opset_import)
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self.constants = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        self.outputs = [value.name for value in model.graph.output]

    def users(self, value: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if value in node.input]

    def maker(self, value: str) -> onnx.NodeProto | None:
        return next((node for node in self.nodes if value in node.output), None)

    def insert_after(self, value: str, nodes: Sequence[onnx.NodeProto]) -> None:
        """Insert `nodes` after the node that makes `value`; before all others if none makes it."""
        maker = self.maker(value)
        place = 0 if maker is None else self.nodes.index(maker) + 1
        self.nodes[place:place] = nodes

    def replace(self, node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
        place = self.nodes.index(node)
        self.nodes[place : place + 1] = nodes

    def drop_unread(self) -> None:
        """Remove the nodes whose results no output needs."""
        needed = set(self.outputs)
        remaining = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                remaining.append(node)
        self.nodes = remaining[::-1]

    def weight_of(self, node: onnx.NodeProto) -> str | None:
        """Return the name of the constant that is the weight of a layer; None for other nodes."""
        if node.op_type not in WEIGHTED:
            return None
        return next((name for name in node.input[:2] if name in self.constants), None)

    def layers(self) -> list[tuple[onnx.NodeProto, str]]:
        """Return each node that has a weight, and the name of the weight, in the order of nodes."""
        return [(node, weight) for node in self.nodes if (weight := self.weight_of(node))]

    def model(self) -> onnx.ModelProto:
        """Change the model that was passed to the constructor, and return it.

        Constants that no node reads are left out.
        """
        read = {name for node in self.nodes for name in node.input}
        graph = self._model.graph
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(array, order="C"), name)
            for name, array in self.constants.items()
            if name in read
        )
        return self._model


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name, as Python values."""
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def simplified(
    model: onnx.ModelProto, *, inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    """Fold constants, merge biases into their layers and name all nodes; changes `model` itself.

    Inputs and outputs get the given names. A layer gets the name of its weight without the last
    part (`stage1.rebnconvin.conv_s1`), and a number if the name is taken. Any other node gets the
    name of its operator and a number. A model with branches or loops is returned unchanged.
    """
    if any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute):
        return model  # names inside branches and loops would have to be changed too
    graph = Graph(model)
    _fold_constants(graph)
    _put_biases_inside(graph)
    graph.drop_unread()
    _name_nodes(graph, model, inputs, outputs)
    simple = graph.model()
    onnx.checker.check_model(simple)
    return simple


def _fold_constants(graph: Graph) -> None:
    remaining: list[onnx.NodeProto] = []
    passed_on: dict[str, str] = {}
    for node in graph.nodes:
        for place, name in enumerate(node.input):
            node.input[place] = passed_on.get(name, name)
        if node.op_type == "Identity" and node.output[0] not in graph.outputs:
            passed_on[node.output[0]] = node.input[0]
        elif node.op_type == "Constant" or (
            node.op_type in FOLDED and all(name in graph.constants for name in node.input)
        ):
            inputs = {name: graph.constants[name] for name in node.input}
            function = onnx.helper.make_function(
                "paddlepool", "constant", list(inputs), list(node.output), [node], graph.opsets
            )
            [value] = ReferenceEvaluator(function).run(None, inputs, attributes={})
            graph.constants[node.output[0]] = np.asarray(value)
        else:
            remaining.append(node)
    graph.nodes = remaining


def _put_biases_inside(graph: Graph) -> None:
    """Turn a per-channel constant that is added after a convolution into its bias.

    The convolution must have no bias yet, and nothing else may read its result.
    """
    dropped: set[int] = set()
    for node in graph.nodes:
        if node.op_type not in ("Conv", "ConvTranspose") or len(node.input) > 2:
            continue
        users = graph.users(node.output[0])
        if len(users) != 1 or users[0].op_type != "Add" or node.output[0] in graph.outputs:
            continue
        [add] = users
        bias = next((name for name in add.input if name in graph.constants), "")
        shape = graph.constants[bias].shape if bias else ()
        if len(shape) < 3 or any(size != 1 for size in (*shape[:-3], *shape[-2:])):
            continue
        name = f"{node.input[1].rpartition('.')[0] or node.output[0]}.bias"
        graph.constants[name] = graph.constants[bias].reshape(-1)
        node.input.append(name)
        node.output[0] = add.output[0]
        dropped.add(id(add))
    graph.nodes = [node for node in graph.nodes if id(node) not in dropped]


def _unused(kind: str, used: set[str], *, numbered: bool) -> str:
    """Return the first unused name of a kind, and add it to `used`.

    Names are kind, kind_1, …, or kind_0, kind_1, … if `numbered`.
    """
    names = (f"{kind}_{number}" if number or numbered else kind for number in itertools.count())
    name = next(candidate for candidate in names if candidate not in used)
    used.add(name)
    return name


def _name_nodes(
    graph: Graph, model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    values = [value for value in model.graph.input if value.name not in graph.constants]
    named = {
        value.name: name
        for values, names in ((values, inputs), (model.graph.output, outputs))
        for value, name in zip(values, names, strict=True)
    }
    for value in (*model.graph.input, *model.graph.output):
        value.name = named.get(value.name, value.name)
    # A node's result must not get the name of an input, an output or a constant. Weights may have
    # a number as their name, or the name of an output.
    layers: set[str] = set()
    results = {*inputs, *outputs, *graph.constants}
    for node in graph.nodes:
        weight = graph.weight_of(node)
        kind = (weight.rpartition(".")[0] or weight) if weight else node.op_type
        node.name = _unused(kind, layers, numbered=not weight)
        for place, name in enumerate(node.output):
            if name and name not in named:
                own = node.name if len(node.output) == 1 else f"{node.name}:{place}"
                named[name] = _unused(own, results, numbered=False)
    for node in graph.nodes:
        for place, name in enumerate(node.input):
            node.input[place] = named.get(name, name)
        for place, name in enumerate(node.output):
            node.output[place] = named.get(name, name)
    graph.outputs = list(outputs)

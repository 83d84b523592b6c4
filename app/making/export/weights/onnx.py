"""Reads U²-Net weights from an ONNX file, whatever the names of its arrays.

Exporters fold batch norm and invent names, so arrays are identified by the graph: the n-th
convolution of the file is the n-th that the upstream network runs. The file is accepted only if
every convolution also reads exactly the convolutions that it reads upstream.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import numpy_helper

from app.contracts.errors import ExportError
from app.making.export.weights.arrays import Arrays
from app.models.networks.u2net import Stage

Sources = tuple[str, ...]
_PASS_THROUGH = {
    "BatchNormalization",
    "Cast",
    "Identity",
    "MaxPool",
    "Relu",
    "Resize",
    "Sigmoid",
    "Upsample",
}


def convolution_sources(stages: tuple[Stage, ...]) -> dict[str, Sources]:
    """Return upstream's convolutions in execution order, each with the convolutions that it reads.

    A concatenation lists its parts in order, a residual addition its two terms.
    """
    reads: dict[str, Sources] = {}

    def block(stage: Stage, entry: Sources) -> Sources:
        def run(level: str, sources: Sources) -> Sources:
            name = f"{stage.name}.rebnconv{level}.conv_s1"
            reads[name] = sources
            return (name,)

        first = run("in", entry)
        encoded = [run("1", first)]
        for level in range(2, stage.depth + 1):
            encoded.append(run(f"{level}", encoded[-1]))
        y = encoded.pop()
        for level in range(stage.depth - 1, 0, -1):
            y = run(f"{level}d", y + encoded[level - 1])
        return y + first

    encoded: list[Sources] = [()]
    for stage in stages[:6]:
        encoded.append(block(stage, encoded[-1]))
    decoded = [encoded[6]]
    for stage, skip in zip(stages[6:], encoded[5:0:-1], strict=True):
        decoded.insert(0, block(stage, decoded[0] + skip))
    for index, feature in enumerate(decoded, start=1):
        reads[f"side{index}"] = feature
    reads["outconv"] = tuple(f"side{index}" for index in range(1, 7))
    return reads


def read_u2net_onnx(path: Path, stages: tuple[Stage, ...]) -> Arrays:
    """Return arrays under upstream names, with batch norm if the file has it.

    Raises ExportError if the file is not ONNX or its graph does not match `stages`.
    """
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        constants = _constants(graph)
    except (OSError, DecodeError, ValueError, TypeError) as error:
        raise ExportError(f"{path.name} cannot be read as ONNX: {error}") from error
    expected = convolution_sources(stages)
    nodes = [node for node in graph.node if node.op_type == "Conv"]
    if len(nodes) != len(expected):
        raise ExportError(
            f"{path.name} has {len(nodes)} convolutions, the network has {len(expected)}"
        )
    names = dict(zip((node.output[0] for node in nodes), expected, strict=True))
    producers = {output: node for node in graph.node for output in node.output}
    norms = {node.input[0]: node for node in graph.node if node.op_type == "BatchNormalization"}
    arrays: Arrays = {}
    for node, (name, sources) in zip(nodes, expected.items(), strict=True):
        found = _sources(node.input[0], producers, names)
        if sorted(found) != sorted(sources) or (len(found) > 2 and found != sources):
            raise ExportError(
                f"{path.name}: the convolution in the place of {name} reads {list(found)}, "
                f"expected {list(sources)}; this is not the expected network"
            )
        try:
            arrays[f"{name}.weight"] = constants[node.input[1]]
            if len(node.input) > 2:
                arrays[f"{name}.bias"] = constants[node.input[2]]
            if norm := norms.get(node.output[0]):
                block = name.removesuffix(".conv_s1")
                kinds = ("weight", "bias", "running_mean", "running_var")
                for kind, key in zip(kinds, norm.input[1:5], strict=True):
                    arrays[f"{block}.bn_s1.{kind}"] = constants[key]
        except (KeyError, ValueError) as error:
            raise ExportError(f"{path.name}: the weights of {name} are not constants") from error
    return arrays


def _sources(value: str, producers: dict[str, Any], names: dict[str, str]) -> Sources:
    """Return the convolutions that `value` comes from, skipping nodes without weights."""
    if value in names:
        return (names[value],)
    node = producers.get(value)
    if node is None:  # the network's input
        return ()
    if node.op_type in _PASS_THROUGH:
        return _sources(node.input[0], producers, names)
    if node.op_type in ("Concat", "Add"):
        return tuple(name for part in node.input for name in _sources(part, producers, names))
    raise ExportError(f"the graph holds a {node.op_type}, which U²-Net does not have")


def _constants(graph: Any) -> dict[str, NDArray[np.float32]]:
    found = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found

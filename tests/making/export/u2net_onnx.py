"""U²-Net as an ONNX graph with anonymous names, as exporters write it."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from paddlepool.making.export.weights import Arrays
from paddlepool.models.networks.u2net import U2NETP, Stage
from tests.tiny_onnx import model


class Graph:
    """Nodes and initialisers collected while the network is spelled out."""

    def __init__(self, arrays: Arrays, *, side: int) -> None:
        self.arrays = arrays
        self.side = side
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.sizes = {"picture": side}

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def add(self, kind: str, inputs: list[str], size: int, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.sizes[name] = size
        return name

    def conv(self, name: str, x: str, *, dilation: int = 1) -> str:
        kernel = self.arrays[f"{name}.weight"]
        pad = dilation if kernel.shape[2] == 3 else 0
        parts = [self.constant(kernel), self.constant(self.arrays[f"{name}.bias"])]
        size = self.sizes[x]
        return self.add("Conv", [x, *parts], size, dilations=[dilation] * 2, pads=[pad] * 4)

    def block(self, name: str, x: str, dilation: int = 1) -> str:
        y = self.conv(f"{name}.conv_s1", x, dilation=dilation)
        if f"{name}.bn_s1.weight" in self.arrays:
            kinds = ("weight", "bias", "running_mean", "running_var")
            norm = [self.constant(self.arrays[f"{name}.bn_s1.{kind}"]) for kind in kinds]
            y = self.add("BatchNormalization", [y, *norm], self.sizes[y], epsilon=1e-5)
        return self.add("Relu", [y], self.sizes[y])

    def pool(self, x: str) -> str:
        size = -(-self.sizes[x] // 2)
        return self.add("MaxPool", [x], size, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)

    def resize(self, x: str, like: str) -> str:
        size = self.sizes[like]
        scale = np.array([1, 1, size / self.sizes[x], size / self.sizes[x]], np.float32)
        inputs = [x, "", self.constant(scale)]
        mode = "half_pixel"
        return self.add("Resize", inputs, size, mode="linear", coordinate_transformation_mode=mode)

    def concat(self, *parts: str) -> str:
        return self.add("Concat", list(parts), self.sizes[parts[0]], axis=1)

    def stage(self, stage: Stage, x: str) -> str:
        def run(level: str, value: str, power: int) -> str:
            dilation = 2 ** (power - 1) if stage.flat else (2 if power == stage.depth else 1)
            return self.block(f"{stage.name}.rebnconv{level}", value, dilation)

        entry = self.block(f"{stage.name}.rebnconvin", x)
        encoded = [run("1", entry, 1)]
        for level in range(2, stage.depth + 1):
            below = encoded[-1]
            if not stage.flat and level < stage.depth:
                below = self.pool(below)
            encoded.append(run(f"{level}", below, level))
        y = encoded.pop()
        for level in range(stage.depth - 1, 0, -1):
            skip = encoded[level - 1]
            if self.sizes[y] != self.sizes[skip]:
                y = self.resize(y, skip)
            power = level if stage.flat else 1
            y = run(f"{level}d", self.concat(y, skip), power)
        return self.add("Add", [y, entry], self.sizes[y])


def write_u2netp(path: Path, arrays: Arrays, *, stages: tuple[Stage, ...] = U2NETP) -> None:
    """Writes the graph of `arrays` (upstream names)."""
    side = 320
    graph = Graph(arrays, side=side)
    encoded = [graph.stage(stages[0], "picture")]
    for stage in stages[1:6]:
        encoded.append(graph.stage(stage, graph.pool(encoded[-1])))
    decoded = [encoded.pop()]
    for stage, skip in zip(stages[6:], reversed(encoded), strict=True):
        up = graph.resize(decoded[0], skip)
        decoded.insert(0, graph.stage(stage, graph.concat(up, skip)))
    sides = [graph.conv(f"side{index}", x) for index, x in enumerate(decoded, start=1)]
    maps = [sides[0], *(graph.resize(x, sides[0]) for x in sides[1:])]
    fused = graph.conv("outconv", graph.concat(*maps))
    output = graph.add("Sigmoid", [fused], side)
    network = model(
        graph.nodes,
        inputs={"picture": [1, 3, side, side]},
        outputs={output: [1, 1, side, side]},
        constants=graph.constants,
    )
    onnx.save(network, path)

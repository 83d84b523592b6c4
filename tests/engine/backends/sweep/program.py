"""A small program with its inputs, as the sweep over all engines runs it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn

SIZES = ({"n": 2, "h": 7, "w": 5, "t": 9}, {"n": 3, "h": 10, "w": 13, "t": 6})
"""The sizes of the free axes in the first and in the second run: odd, unequal, never 1."""


class Input(NamedTuple):
    """`axes` are sizes, or names of SIZES where they are free. Integers are below `end`."""

    axes: str
    dtype: str = "float32"
    begin: int = 0
    end: int = 0

    def shape(self, sizes: Mapping[str, Any]) -> list[int | None]:
        return [sizes[axis] if axis in sizes else int(axis) for axis in self.axes.split()]

    def array(self, sizes: Mapping[str, int], random: np.random.Generator) -> np.ndarray[Any, Any]:
        shape = [int(size or 0) for size in self.shape(sizes)]
        if self.end:
            return random.integers(self.begin, self.end, shape).astype(self.dtype)
        return np.clip(random.normal(0, 3, shape), -8, 8).astype(self.dtype)


class Network(nn.Layer):
    """`compute(*layers, *inputs)`: what is exported must have named parameters."""

    def __init__(self, compute: Callable[..., Any], layers: tuple[nn.Layer, ...]) -> None:
        super().__init__()
        self.compute = compute
        self.layers = nn.LayerList(layers)
        # Paddle saves no parameters of a program without any, and some engines ask for the file.
        self.unused = self.create_parameter([1])

    def forward(self, a: Any, b: Any = None, c: Any = None) -> Any:
        inputs = [tensor for tensor in (a, b, c) if tensor is not None]
        return self.compute(*self.layers, *inputs)


@dataclass(frozen=True)
class Program:
    name: str
    compute: Callable[..., Any]
    inputs: tuple[Input, ...]
    layers: tuple[Callable[[], nn.Layer], ...] = ()

    def network(self) -> nn.Layer:
        """The network with parameters that are the same in every process."""
        paddle.seed(7)
        network = Network(self.compute, tuple(make() for make in self.layers))
        random = np.random.default_rng(7)
        # Paddle begins norms with 1 and 0, which hide much.
        for name, parameter in network.named_parameters():
            low, high = (0.5, 2) if name.endswith("_variance") else (-0.7, 0.9)
            parameter.set_value(random.uniform(low, high, parameter.shape).astype("float32"))
        network.eval()
        return network


def stacked(*functions: Callable[[Any], Any]) -> Callable[..., Any]:
    """Apply a program's layers one after the other to its only input, and then these functions."""

    def compute(*layers_and_input: Any) -> Any:
        *layers, x = layers_and_input
        for step in (*layers, *functions):
            x = step(x)
        return x

    return compute


PICTURE, CELLS, ROW = Input("n 3 h w"), Input("n 6 h w"), Input("n 6")
WORDS, LINE, BOX = Input("n t 8"), Input("n 4 t"), Input("n 2 5 6 7")
IDS = Input("n t", "int64", 0, 50)

"""Paddle layers, which run one operator after another: the dynamic graph, and `paddle.jit.load`.

The dynamic graph runs as in training and debugging. It is the slow reference of comparisons. The
program that `paddle.jit.load` opens is traced, but not optimised for inference.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.handler import Handler, checked_options, serve
from paddlepool.models.networks import build, load_parameters, load_program


def open_dygraph(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Rebuild the network that the manifest names, and return its handler.

    Raises ConfigError for any option, BackendError if the manifest names no network, and the errors
    of build() and load_parameters().
    """
    _prepare("paddle_dygraph", opening)
    description = opening["network"]
    if description is None:
        raise BackendError("the manifest names no network, so there is no dynamic graph to run")
    # Parts marked for export would be translated into files, which this process may not write.
    paddle.jit.enable_to_static(False)
    network = build(description["name"], description["options"])
    network.set_state_dict(load_parameters(Path(opening["directory"])))
    return _served(network, opening)


def open_jit(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Load the program as a layer and return its handler.

    Raises ConfigError for any option, and the errors of load_program().
    """
    _prepare("paddle_jit", opening)
    layer = load_program(Path(opening["directory"]) / Path(opening["program"]).stem)
    return _served(layer, opening)


def _prepare(backend: str, opening: Mapping[str, Any]) -> None:
    checked_options(backend, opening["options"], {})
    paddle.disable_signal_handler()
    paddle.base.core.set_num_threads(opening["threads"])


def _served(layer: Any, opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    layer.eval()
    names = [spec["name"] for spec in opening["inputs"]]

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        with paddle.no_grad():
            results = layer(*(paddle.to_tensor(inputs[name]) for name in names))
        several = isinstance(results, tuple | list)
        return [tensor.numpy() for tensor in (results if several else [results])]

    return {}, serve(run)

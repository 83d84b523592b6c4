"""The dynamic graph, as it was trained and debugged: the slow end of every comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from app.backends.handler import Handler, checked_options, serve
from app.contracts.errors import BackendError
from app.contracts.tensors import Tensors
from app.export.program import load_parameters
from app.networks import build


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Rebuild the network that the manifest names. Raises BackendError for a foreign model."""
    checked_options("paddle_dygraph", opening["options"], {})
    description = opening["network"]
    if description is None:
        raise BackendError("the manifest names no network, so there is no dynamic graph to run")
    paddle.disable_signal_handler()
    # Parts that are marked for export would be translated, into files that nobody here may write.
    paddle.jit.enable_to_static(False)
    paddle.base.core.set_num_threads(opening["threads"])
    network = build(description["name"], description["options"])
    network.set_state_dict(load_parameters(Path(opening["directory"])))
    network.eval()
    names = [spec["name"] for spec in opening["inputs"]]

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        with paddle.no_grad():
            results = network(*(paddle.to_tensor(inputs[name]) for name in names))
        return [tensor.numpy() for tensor in _listed(results)]

    return {}, serve(run)


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]

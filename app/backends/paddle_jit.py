"""The static program through `paddle.jit.load`: traced, but not optimised for inference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from app.backends.handler import Handler, checked_options, serve
from app.contracts.tensors import Tensors
from app.export.program import load_program


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Load the program as a layer; called once in the child."""
    checked_options("paddle_jit", opening["options"], {})
    paddle.disable_signal_handler()
    paddle.base.core.set_num_threads(opening["threads"])
    layer = load_program(Path(opening["directory"]) / Path(opening["program"]).stem)
    layer.eval()
    names = [spec["name"] for spec in opening["inputs"]]

    def run(inputs: Tensors) -> list[np.ndarray[Any, Any]]:
        with paddle.no_grad():
            results = layer(*(paddle.to_tensor(inputs[name]) for name in names))
        several = isinstance(results, tuple | list)
        return [tensor.numpy() for tensor in (results if several else [results])]

    return {}, serve(run)

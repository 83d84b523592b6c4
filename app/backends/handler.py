"""The child's side of a backend: from a run function to a child's handler, options checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.contracts.errors import ConfigError
from app.contracts.tensors import Tensors

Run = Callable[[Tensors], Sequence[np.ndarray[Any, Any]]]
Handler = Callable[
    [Mapping[str, Any], Tensors, Sequence[int]], tuple[Mapping[str, Any], Mapping[str, Any]]
]


def serve(run: Run) -> Handler:
    """For backend modules: a child's handler around `run(inputs)`, outputs in manifest order."""

    def handle(
        _meta: Mapping[str, Any], arrays: Tensors, _descriptors: Sequence[int]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return {}, {str(index): output for index, output in enumerate(run(arrays))}

    return handle


def checked_options(
    backend: str, received: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of an instance group over their defaults in `known`, each of the same type.

    Raises ConfigError naming an option that is unknown or of the wrong type.
    """
    for name, value in received.items():
        if name not in known:
            raise ConfigError(
                f"backend {backend} has no option {name!r}, it has {', '.join(known)}",
                received=name,
            )
        if type(value) is not type(known[name]):
            raise ConfigError(
                f"backend {backend}: option {name!r} must be a {type(known[name]).__name__}",
                received=str(value)[:40],
            )
    return {**known, **received}

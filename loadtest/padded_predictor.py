"""Texts as they meet a served model: each padded to a length that the predictor was warmed with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.contracts.ports import Predictor, Ran
from app.contracts.reasons import Restart
from app.contracts.tensors import Array, Tensors


class PaddedPredictor:
    """A predictor that pads each text to the smallest of `lengths` that holds it."""

    def __init__(self, predictor: Predictor, lengths: Sequence[int]) -> None:
        self._predictor = predictor
        self._lengths = lengths

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        return self._predictor.run(self._padded(inputs), timeout=timeout)

    def send(self, inputs: Tensors) -> None:
        self._predictor.send(self._padded(inputs))

    def arrives(self, seconds: float) -> bool:
        return self._predictor.arrives(seconds)

    def receive(self, *, timeout: float) -> Ran:
        return self._predictor.receive(timeout=timeout)

    def _padded(self, inputs: Tensors) -> Tensors:
        tokens = next(iter(inputs.values())).shape[1]
        more = next(length for length in self._lengths if length >= tokens) - tokens
        padded: dict[str, Array] = {
            name: np.pad(array, ((0, 0), (0, more))) for name, array in inputs.items()
        }
        return padded

    def failure(self) -> Restart | None:
        return self._predictor.failure()

    def settle(self) -> None:
        self._predictor.settle()

    def resident_bytes(self) -> int:
        return self._predictor.resident_bytes()

    def abort(self) -> None:
        self._predictor.abort()

    def close(self) -> None:
        self._predictor.close()

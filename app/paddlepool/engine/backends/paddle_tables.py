"""The range of ids of a program's embeddings: Paddle 3.2.2 does not check all of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.paddle_operators import Operator

NO_PADDING = -1


def unchecked_tables(operators: Iterable[Operator], *, every: bool = False) -> Mapping[str, int]:
    """The rows of the smallest table whose ids are not checked, by the input with its ids.

    `every` counts all tables: those that Paddle checks, other engines do not.
    """
    rows: dict[str, int] = {}
    for each in operators:
        unchecked = every or each.attributes.get("padding_idx") != NO_PADDING
        if each.name == "embedding" and unchecked and each.source and (table := each.inputs[1]):
            rows[each.source] = min(table[0], rows.get(each.source, table[0]))
    return rows


def check_ids(inputs: Tensors, tables: Mapping[str, int], *, from_end: bool = False) -> None:
    """Raise BackendError if an input has an id that its table lacks.

    `from_end` tells that negative ids count from the table's end, as in ONNX.
    """
    for name, rows in tables.items():
        ids: NDArray[np.integer[Any]] = np.asarray(inputs[name])
        lowest = -rows if from_end else 0
        if ids.size and (wrong := ids[(ids < lowest) | (ids >= rows)]).size:
            raise BackendError(f"{name} takes ids from {lowest} to {rows - 1}, received {wrong[0]}")

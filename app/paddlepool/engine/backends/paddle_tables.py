"""Range check of embedding ids: Paddle 3.2.2 checks none of embeddings with a `padding_idx`."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.paddle_operators import Operator

NO_PADDING = -1


def unchecked_tables(operators: Iterable[Operator], *, every: bool = False) -> Mapping[str, int]:
    """Map each input of ids to the number of rows of the smallest table that they index.

    Tables whose ids Paddle checks are left out, unless `every` is set: other frameworks do not
    check these.
    """
    rows: dict[str, int] = {}
    for op in operators:
        unchecked = every or op.attributes.get("padding_idx") != NO_PADDING
        if op.name == "embedding" and unchecked and op.source and (table := op.inputs[1]):
            rows[op.source] = min(table[0], rows.get(op.source, table[0]))
    return rows


def check_ids(inputs: Tensors, tables: Mapping[str, int], *, from_end: bool = False) -> None:
    """Raise BackendError if an input has an id that its table lacks.

    With `from_end`, negative ids count from the table's end, as in ONNX.
    """
    for name, rows in tables.items():
        ids: NDArray[np.integer[Any]] = np.asarray(inputs[name])
        lowest = -rows if from_end else 0
        if ids.size and (wrong := ids[(ids < lowest) | (ids >= rows)]).size:
            raise BackendError(f"{name} takes ids from {lowest} to {rows - 1}, received {wrong[0]}")

"""Finds out whether the rows of a batch are independent of each other, for a program's trial."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.tensors import Array, Tensors, all_finite
from paddlepool.engine.backends.paddle_operators import operators_of
from paddlepool.making.export.trial_inputs import contrasts, joined
from paddlepool.models.repository.manifest import ONNX_SUFFIX
from paddlepool.models.repository.selftest import usual_size

PADDLE_SELECTING = frozenset(
    (
        "collect_fpn_proposals",
        "distribute_fpn_proposals",
        "generate_proposals",
        "generate_proposals_v2",
        "masked_select",
        "matrix_nms",
        "multiclass_nms",
        "multiclass_nms2",
        "multiclass_nms3",
        "nms",
        "nonzero",
        "unique",
        "unique_consecutive",
        "where_index",
    )
)
"""Operators of Paddle that select elements by their values, which decide how many there are."""

ONNX_SELECTING = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))

Run = Callable[[Tensors], Tensors | None]
"""Runs the program; returns None if it refuses the inputs."""


def selecting_operator(program: Path) -> str:
    """Return the name of an operator that selects elements by their values; "" without one.

    Such a program may select all of the elements that a trial gives it, and not those of a client:
    no trial shows that its rows are independent. A program that cannot be read has no operators.
    """
    try:
        if program.suffix == ONNX_SUFFIX:
            import onnx

            nodes = onnx.load(program, load_external_data=False).graph.node
            return next((node.op_type for node in nodes if node.op_type in ONNX_SELECTING), "")
        return next((op.name for op in operators_of(program) if op.name in PADDLE_SELECTING), "")
    except (BackendError, ImportError, OSError):
        return ""


def batching_warning(program: Path, max_batch_size: int) -> str:
    """Return a clause about a program that earlier versions have sealed as one to batch, or ""."""
    operator = selecting_operator(program) if max_batch_size else ""
    if not operator:
        return ""
    return (
        f"; but max_batch_size is {max_batch_size} and {operator} selects by values: rows of a "
        "batch may depend on each other, which max_batch_size = 0 allows for"
    )


def are_independent(run: Run, spec: PredictorSpec, inputs: Tensors, outputs: Tensors) -> bool:
    """Return whether the pairs of contrasts() have the same outputs in a batch as alone.

    `outputs` are those of the row `inputs`. A pair says nothing if the program refuses one of its
    rows, or if the outputs of one are not finite.
    """
    for first, second in contrasts(spec.inputs, inputs):
        one = outputs if first is inputs else run(first)
        other = outputs if second is inputs else run(second)
        if one is None or other is None or not (all_finite(one) and all_finite(other)):
            continue
        both = run(joined(first, second))
        if both is None:
            return False
        if not all(is_concatenation(one[name], other[name], both[name]) for name in one):
            return False
    return True


def is_concatenation(first: Array, second: Array, both: Array) -> bool:
    if first.shape[1:] != second.shape[1:]:
        return False
    rows = np.concatenate([first, second])
    return rows.shape == both.shape and np.allclose(
        rows, both, rtol=1e-4, atol=1e-5 * max(1.0, usual_size(rows))
    )

"""How far one output of a derived program is from the reference's."""

from __future__ import annotations

import numpy as np

from app.contracts.tensors import Array, absolute_differences


def drift(found: Array, expected: Array) -> float:
    """Mean absolute difference, as a share of the largest expected value or, where that is smaller,
    of 1; 0 where there is nothing to compare."""
    if not expected.size:
        return 0.0
    largest = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
    return float(absolute_differences(found, expected).mean()) / largest

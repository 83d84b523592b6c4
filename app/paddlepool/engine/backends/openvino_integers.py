"""Integers that OpenVINO 2026.4 computes as float32 on the CPU, without an error.

Comparisons, quotients, remainders, sums and extrema of int32 and int64 are rounded like float32:
16777217 equals 16777216. Additions, products and what only moves values are exact. All of them are
exact, also with the hint bfloat16, if no value is beyond EXACT.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.tensors import Tensors

EXACT = 2**23
"""Float32 holds integers up to 2^24, but remainders are wrong from 2^23 on."""

INTEGERS = ("i32", "i64", "u32", "u64")
"""OpenVINO's names of the types that hold larger integers."""
ALL_VALUES = frozenset(
    ["Concat", "Maximum", "Minimum", "Select", "ScatterNDUpdate", "ScatterElementsUpdate"]
)
"""Operators that return values of each of their inputs."""
FIRST_VALUES = frozenset(
    [
        "Abs", "Broadcast", "Convert", "Gather", "GatherElements", "GatherND", "Identity",
        "Negative", "Pad", "Reshape", "Result", "ReverseSequence", "Sign", "Slice", "Split",
        "Squeeze", "StridedSlice", "Tile", "TopK", "Transpose", "Unsqueeze", "VariadicSplit",
    ]
)  # fmt: skip
"""Operators that return values of their first input, perhaps with another sign."""
ARITHMETIC = frozenset(["Add", "Subtract", "Multiply", "CumSum"])
POSITIONS = frozenset(["ShapeOf", "NonZero"])
"""Operators that return sizes or positions."""
EXACT_OPERATORS = ALL_VALUES | FIRST_VALUES | ARITHMETIC | POSITIONS
ROUNDED_VALUES = frozenset(["Clamp", "Divide", "ReduceMax", "ReduceMin"])
"""Operators that are computed as float32 and return nothing larger than their first input."""
REMAINDERS = ("Mod", "FloorMod")
SUMS = ("CumSum", "ReduceSum")
GROWING = ("MatMul", "Power", "ReduceProd", "ReduceL1", "ReduceL2")
"""Operators that no useful bound of their inputs keeps exact."""


class Bound(NamedTuple):
    """|value| <= factor * M + offset, where M is the largest |x| of each named input x.

    With `summed`, M is the sum of |x| over the input.
    """

    names: frozenset[str] = frozenset()
    factor: int = 0
    offset: int = 0
    summed: bool = False


SIZE = Bound(offset=2**16)
"""Taken for integers that come from shapes or from floating-point numbers."""

Limits = Mapping[str, tuple[int, bool]]
"""Maps the name of an input to the largest |x|, or with True to the largest sum of |x|."""


def limits(model: Any) -> tuple[list[str], Limits]:
    """Return reasons why a model's integers would be rounded, and limits within which they are not.

    There is a reason for each operator that could round integers of inputs within every limit.
    """
    reasons: set[str] = set()
    largest: dict[str, tuple[int, bool]] = {}
    bounds: dict[str, Bound | None] = {}  # by operator; None: larger than any useful bound
    for op in model.get_ordered_ops():
        kind, inputs = op.get_type_name(), list(_integers(op, bounds))
        for bound in () if kind in EXACT_OPERATORS else inputs:
            bound = _sum(bound) if kind in SUMS else bound
            if bound and not bound.names:
                continue
            if bound is None or kind in GROWING or bound.offset >= EXACT:
                reasons.add(f"{kind} of integers, computed as float32")
                continue
            limit = (EXACT - bound.offset) // bound.factor
            for name in bound.names:
                before, summed = largest.get(name, (limit, False))
                largest[name] = min(limit, before), summed or bound.summed
        bounds[op.get_friendly_name()] = _bound(op, kind, inputs)
    return sorted(reasons), largest


def check_integers(inputs: Tensors, largest: Limits) -> None:
    """Raise BackendError for integers beyond their limits."""
    for name, (limit, summed) in largest.items():
        values = np.asarray(inputs[name])
        if not values.size:
            continue
        if summed:
            value, what = int(np.abs(values, dtype=np.float64).sum()), "integers with the sum"
        else:
            value, what = max(int(values.max()), -int(values.min())), "the integer"
        if value > limit:
            message = f"OpenVINO computes as float32, exactly up to {limit}"
            raise BackendError(f"input {name!r} has {what} {value}, which {message}")


def _integers(operator: Any, bounds: Mapping[str, Bound | None]) -> Iterator[Bound | None]:
    for port in operator.inputs():
        source = port.get_source_output()
        if type_of(source) in INTEGERS:
            yield bounds.get(source.get_node().get_friendly_name(), SIZE)


def _bound(operator: Any, kind: str, inputs: Sequence[Bound | None]) -> Bound | None:
    """Bound of an operator's integer outputs."""
    if kind == "Parameter":
        name = operator.output(0).get_any_name()
        return Bound(frozenset([name]), 1) if type_of(operator.output(0)) in INTEGERS else SIZE
    if kind == "Constant":
        if type_of(operator.output(0)) not in INTEGERS:
            return SIZE
        return Bound(offset=int(np.abs(operator.data, dtype=np.float64).max(initial=0)))
    if not inputs or kind in POSITIONS:
        boolean = kind == "Convert" and type_of(operator.input_value(0)) == "boolean"
        return Bound(offset=1) if boolean else SIZE
    first, *others = inputs
    if kind in FIRST_VALUES or kind in ROUNDED_VALUES:
        return first
    if kind in SUMS:
        return _sum(first)
    if kind in REMAINDERS and others[0] and not others[0].names:
        return others[0]
    known = [bound for bound in inputs if bound]
    if len(known) < len(inputs):
        return None
    if kind in ALL_VALUES or kind in REMAINDERS or kind == "Range":
        return _joined(known, max)
    if kind in ("Add", "Subtract"):
        return _joined(known, sum)
    if kind == "Multiply":
        return _product(*known)
    return None if any(bound.names for bound in known) else SIZE


def _joined(bounds: Sequence[Bound], combine: Callable[[Iterable[int]], int]) -> Bound:
    return Bound(
        frozenset().union(*(bound.names for bound in bounds)),
        combine(bound.factor for bound in bounds),
        combine(bound.offset for bound in bounds),
        any(bound.summed for bound in bounds),
    )


def _product(first: Bound, second: Bound) -> Bound | None:
    if first.names and second.names:
        return None
    tracked, size = (first, second.offset) if first.names else (second, first.offset)
    if not size:
        return Bound()
    return Bound(tracked.names, tracked.factor * size, tracked.offset * size, tracked.summed)


def _sum(bound: Bound | None) -> Bound | None:
    """Bound of sums of values with this bound."""
    if bound is None or (bound.names and bound.offset):
        return None
    return bound._replace(summed=True) if bound.names else SIZE


def type_of(output: Any) -> str:
    """Return OpenVINO's name of the type of an operator's output."""
    return str(output.get_element_type().to_string())

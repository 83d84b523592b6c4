"""Programs that OpenVINO 2026.4 would compute wrongly, without an error, on the CPU.

OpenVINO computes int64 in 32 bits and float64 as float32, and ignores some attributes. If the
processor has no VNNI, sums of int8 products saturate.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from paddlepool.engine.backends.openvino_integers import (
    ALL_VALUES,
    FIRST_VALUES,
    POSITIONS,
    type_of,
)

INT32 = np.iinfo(np.int32)
SENTINEL = 2**62
"""Larger constants mean "to the end" in slices."""
WIDE = ("i64", "u64")
"""OpenVINO's names of the types whose upper half is lost."""

REAL = ("f32", "f64", "f16", "bf16")
ROUNDING = ("Floor", "Ceiling", "Convert")

MOVING = (
    (FIRST_VALUES | ALL_VALUES | POSITIONS | {"Parameter", "ReduceMax", "ReduceMin"})
    - {"Abs", "Convert", "Negative", "Sign"}
)  # fmt: skip
"""Operators that return values of their inputs, or positions: integers do not become larger."""

REDUCTIONS = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
"""Before opset 18, their axes are an attribute, which OpenVINO ignores."""
AXES_AS_INPUT = 18

INT8_RANGE = 64
"""Largest int8 weight for which the sum of two products with uint8 fits in 16 bits, in which a
processor without VNNI adds them."""
INT8_OPERATORS = (b"QuantizeLinear", b"QLinear", b"ConvInteger", b"MatMulInteger")
"""Operators that write or read int8 activations. `DequantizeLinear` alone reads only weights."""


SMALL, FROM_INPUT, COMPUTED = range(3)
"""How large an integer may be: a size or position; any value of an input; a computed value, which
may be larger."""


def unsuitable(model: Any) -> list[str]:
    """Return reasons why OpenVINO would compute this model wrongly; an empty list if it has none.

    lost_axes() and saturating() look for further reasons.
    """
    return sorted({*_fixed(model), *_computed(model)})


def _fixed(model: Any) -> Iterator[str]:
    for op in model.get_ops():
        kind = op.get_type_name()
        if kind == "AvgPool":
            attributes = op.get_attributes()
            if not attributes["exclude-pad"] and attributes["rounding_type"].startswith("ceil"):
                yield "AveragePool with ceil_mode and count_include_pad"
        if kind in ROUNDING and _integer_from_quotient(op):
            yield f"{kind} of a quotient, which is one less for some exact multiples"
        if kind == "Constant" and _type(op) in WIDE and not _ends_slices(op):
            values = np.abs(op.data.astype(np.float64))
            if ((values > INT32.max) & (values < SENTINEL)).any():
                yield "an int64 constant beyond 32 bits"


def _integer_from_quotient(operator: Any) -> bool:
    """Whether the operator rounds or converts a quotient of floats to integers.

    OpenVINO does not divide exactly: 41 / 41 is less than 1 if the divisor is a constant.
    """
    source = operator.input(0).get_source_output().get_node()
    rounded = operator.get_type_name() != "Convert" or _type(operator) not in REAL
    return rounded and source.get_type_name() == "Divide" and _type(source) in REAL


def _ends_slices(constant: Any) -> bool:
    readers = {port.get_node().get_type_name() for port in constant.output(0).get_target_inputs()}
    return readers <= {"Slice", "StridedSlice"}


def _computed(model: Any) -> Iterator[str]:
    """Yield the reasons that lie in what the model computes from its inputs.

    A reason is a float64 value, or an int64 output that may be larger than the inputs: OpenVINO
    computes both in 32 bits.
    """
    sizes: dict[str, int] = {}  # by operator that depends on an input's values
    for op in model.get_ordered_ops():
        kind, name = op.get_type_name(), op.get_friendly_name()
        sources = [port.get_source_output().get_node() for port in op.inputs()]
        sources = [source for source in sources if source.get_friendly_name() in sizes]
        if kind == "ShapeOf" or not (sources or kind == "Parameter"):
            continue
        largest = max((sizes[source.get_friendly_name()] for source in sources), default=SMALL)
        if kind == "Parameter":
            sizes[name] = FROM_INPUT if _type(op) in WIDE else SMALL
        elif kind == "Convert":
            real = any(_type(source) in REAL for source in sources)
            sizes[name] = COMPUTED if real else largest
        else:
            sizes[name] = COMPUTED if largest and kind not in MOVING else largest
        if "f64" in {port.element_type.to_string() for port in op.outputs()}:
            yield "float64, computed as float32"
        if kind == "Result" and _type(op) in WIDE and largest == COMPUTED:
            yield "int64 outputs that are computed, in 32 bits"


def _type(operator: Any) -> str:
    return type_of(operator.output(0))


REPEATING = frozenset(
    ["Convert", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose", "Unsqueeze"]
)
"""Operators whose output contains only values of their first input."""


def tables(model: Any) -> Mapping[str, int]:
    """Map the name of each input that contains ids to the number of rows of its table.

    The ids are those with which a Gather reads rows of a table of fixed size; of several tables,
    the smallest counts. OpenVINO reads zeros for an id that the table lacks, without an error.
    """
    rows: dict[str, int] = {}
    for op in model.get_ops():
        if op.get_type_name() != "Gather":
            continue
        ids, axis = (op.input_value(index).get_node() for index in (1, 2))
        shape = op.input_value(0).get_partial_shape()
        while ids.get_type_name() in REPEATING:
            ids = ids.input_value(0).get_node()
        first = axis.get_type_name() == "Constant" and not axis.data.any()
        fixed = shape.rank.is_static and shape[0].is_static
        if first and fixed and ids.get_type_name() == "Parameter":
            name, size = ids.output(0).get_any_name(), shape[0].get_length()
            rows[name] = min(size, rows.get(name, size))
    return rows


def lost_axes(program: bytes) -> list[str]:
    """Return a message for each kind of ONNX reduction whose axes OpenVINO would ignore."""
    if not any(name.encode() in program for name in REDUCTIONS):
        return []
    import onnx

    model = onnx.load_from_string(program)
    opset = next((entry.version for entry in model.opset_import if not entry.domain), 1)
    names = {
        node.op_type
        for node in model.graph.node
        if node.op_type in REDUCTIONS and any(item.name == "axes" for item in node.attribute)
    }
    return [
        f"{name} with axes in opset {opset}: export with opset {AXES_AS_INPUT}"
        for name in sorted(names)
    ]


def saturating(program: bytes, model: Any) -> bool:
    """Whether the program has int8 activations, and int8 weights beyond ±INT8_RANGE."""
    if not any(name in program for name in INT8_OPERATORS):
        return False
    return any(
        op.get_type_name() == "Constant"
        and op.get_element_type().to_string() == "i8"
        and len(op.shape) > 1
        and np.abs(op.data.astype(np.int16)).max(initial=0) > INT8_RANGE
        for op in model.get_ops()
    )

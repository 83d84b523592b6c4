"""Reads the operators of a static Paddle program from its file, without importing Paddle.

Also finds the tables of embeddings whose ids Paddle 3.2.2 does not check.
"""

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.tensors import Tensors

Shape = tuple[int, ...]
FREE = -1
"""The size of an axis that the program does not fix."""

INTEGERS = ("i8", "ui8", "i16", "i32", "i64")
"""PIR's names of the integer types."""
LEGACY = ".pdmodel"
PIR_NAMES = {
    "elementwise_div": "divide",
    "bilinear_interp_v2": "bilinear_interp",
    "nearest_interp_v2": "nearest_interp",
    "brelu": "hardtanh",
    "elementwise_floordiv": "floor_divide",
    "lookup_table_v2": "embedding",
}
"""PIR's names of operators, by their names in legacy programs."""
LEGACY_INPUTS = (
    "X", "Input", "Y", "OutSize", "SizeTensor", "Scale", "PreState", "WeightList", "SequenceLength",
    "Ids", "W",
)  # fmt: skip
"""Names of inputs of legacy operators, in the order of PIR. An operator may have other inputs."""
REPEATING = frozenset(
    [
        "assign", "cast", "concat", "expand", "flatten", "flatten_contiguous_range", "reshape",
        "slice", "split", "squeeze", "stack", "tile", "transpose", "unsqueeze",
    ]
)  # fmt: skip
"""Operators that return values of their first input. Legacy names may end in 2."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a program. Unknown shapes and absent inputs are None.

    `name` is PIR's name of the operator, without its dialect.

    `used` has one entry for each output: whether another operator reads it. `integer` is true
    if the first output has an integer type. In a legacy program `used` is empty and `integer` is
    false.

    `source` is the name of the program's input whose values the operator's first input has,
    perhaps in another shape. It is empty if the operator's first input has other values.
    """

    name: str
    attributes: Mapping[str, Any]
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    used: tuple[bool, ...] = ()
    integer: bool = False
    source: str = ""

    @property
    def channels_last(self) -> bool:
        layout = self.attributes.get("data_format") or self.attributes.get("data_layout") or ""
        return str(layout).endswith("C")


def operators_of(program: Path) -> list[Operator]:
    """Return the operators of a program, including those of inner blocks.

    Raises BackendError if the file cannot be read or is not a program. Legacy programs (.pdmodel)
    need Paddle's package to be installed.
    """
    try:
        if program.suffix == LEGACY:
            return list(_legacy(program.read_bytes()))
        regions = json.loads(program.read_bytes())["program"]["regions"]
        used: set[int] = set()
        parsed = list(_parse(regions, {}, {}, used))
    except OSError as error:
        raise BackendError(f"{program.name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BackendError(f"{program.name} is not a Paddle program") from error
    return [
        replace(operator, used=tuple(number in used for number in outputs))
        for operator, outputs in parsed
    ]


def _parse(
    regions: Sequence[Mapping[str, Any]],
    shapes: dict[int, Shape | None],
    sources: dict[int, str],
    used: set[int],
) -> Iterator[tuple[Operator, list[int]]]:
    """Yield each operator and the numbers of its outputs.

    Adds each output's number to `shapes`, and to `sources` if its values are those of an input of
    the program. Adds the numbers that are read to `used`.
    """
    for region in regions:
        for block in region["blocks"]:
            for op in block["ops"]:
                results = op.get("O", [])
                results = results if isinstance(results, list) else [results]  # of a parameter
                shapes |= {value["%"]: _shape(value.get("TT", {})) for value in results}
                inputs = [value["%"] for value in op.get("I", [])]
                outputs = [value["%"] for value in results]
                used.update(inputs)
                name = op["#"].partition(".")[2].rstrip("_")
                # The attributes of a parameter have no names.
                attributes = {item["N"]: _value(item["AT"]) for item in op["A"]} if name else {}
                source = sources.get(inputs[0], "") if inputs else ""
                if name == "data":
                    sources |= dict.fromkeys(outputs, str(attributes["name"]))
                elif name in REPEATING:
                    sources |= dict.fromkeys(outputs, source)
                operator = Operator(
                    name,
                    attributes,
                    tuple(map(shapes.get, inputs)),
                    tuple(map(shapes.get, outputs)),
                    integer=bool(results) and _is_integer(results[0].get("TT", {})),
                    source=source,
                )
                yield operator, outputs
                yield from _parse(op.get("regions", []), shapes, sources, used)


def _value(attribute: Mapping[str, Any]) -> Any:
    value = attribute.get("D")
    if attribute["#"].endswith("a_array"):
        return [_value(item) for item in value or ()]
    return value


def _shape(kind: Mapping[str, Any]) -> Shape | None:
    return tuple(kind["D"][1]) if kind.get("#", "").endswith("t_dtensor") else None


def _is_integer(kind: Mapping[str, Any]) -> bool:
    dense = kind.get("#", "").endswith("t_dtensor")
    return dense and str(kind["D"][0]["#"]).rpartition("_")[2] in INTEGERS


def _legacy(program: bytes) -> Iterator[Operator]:
    """Yield the operators of a Paddle 2 program, read with message classes of Paddle's package.

    Raises ValueError if it is not a program.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    [root] = importlib.util.find_spec("paddle").submodule_search_locations  # type: ignore[union-attr, misc]
    spec = importlib.util.spec_from_file_location(
        "framework_pb2", f"{root}/base/proto/framework_pb2.py"
    )
    messages = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(messages)  # type: ignore[union-attr]
    try:
        description = messages.ProgramDesc.FromString(program)
    except DecodeError as error:
        raise ValueError("not a program") from error
    shapes: dict[str, Shape] = {}
    for block in description.blocks:
        for variable in block.vars:
            if variable.type.HasField("dense_tensor"):
                shapes[variable.name] = tuple(variable.type.dense_tensor.tensor.dims)
    sources: dict[str, str] = {}
    for block in description.blocks:
        for op in block.ops:
            name = PIR_NAMES.get(op.type, op.type)
            arguments = {item.parameter: [*item.arguments, ""] for item in op.inputs}
            inputs = [arguments[key][0] for key in LEGACY_INPUTS if key in arguments]
            # XShape is no tensor: it keeps a shape for the gradient, with an axis more.
            outputs = [item.arguments[0] for item in op.outputs if item.parameter != "XShape"]
            source = sources.get(inputs[0], "") if inputs else ""
            if name == "feed":
                sources[outputs[0]] = outputs[0]
            elif name.removesuffix("2") in REPEATING:
                sources |= dict.fromkeys(outputs, source)
            yield Operator(
                name,
                {item.name: _legacy_value(item) for item in op.attrs},
                tuple(map(shapes.get, inputs)),
                tuple(map(shapes.get, outputs)),
                source=source,
            )


def _legacy_value(attribute: Any) -> Any:
    for kind in ("i", "f", "s", "b", "l", "float64"):
        if attribute.HasField(kind):
            return getattr(attribute, kind)
    return list(attribute.floats or attribute.ints or attribute.longs)


NO_PADDING = -1


def unchecked_tables(operators: Iterable[Operator], *, every: bool = False) -> Mapping[str, int]:
    """Map the name of each input that contains unchecked ids to the number of rows of its table.

    The ids are indices of rows of an embedding's table; of several tables, the smallest counts.
    With `every`, ids that Paddle checks are included: ONNX Runtime accepts negative ones.
    """
    rows: dict[str, int] = {}
    for op in operators:
        unchecked = every or op.attributes.get("padding_idx") != NO_PADDING
        if op.name == "embedding" and unchecked and op.source and (table := op.inputs[1]):
            rows[op.source] = min(table[0], rows.get(op.source, table[0]))
    return rows


def check_ids(inputs: Tensors, tables: Mapping[str, int], *, from_end: bool = False) -> None:
    """Raise BackendError if an input has an id that its table lacks.

    `tables` maps names of inputs to the rows of their tables. With `from_end`, negative ids count
    from the table's end, as in ONNX.
    """
    for name, rows in tables.items():
        ids: NDArray[np.integer[Any]] = np.asarray(inputs[name])
        lowest = -rows if from_end else 0
        if ids.size and (wrong := ids[(ids < lowest) | (ids >= rows)]).size:
            raise BackendError(f"{name} takes ids from {lowest} to {rows - 1}, received {wrong[0]}")

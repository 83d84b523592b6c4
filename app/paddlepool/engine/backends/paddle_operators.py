"""The operators of a static Paddle program, read from its file without Paddle."""

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paddlepool.contracts.errors import BackendError

Shape = tuple[int, ...]
FREE = -1
"""The size of an axis that the program does not fix."""

INTEGERS = ("i8", "ui8", "i16", "i32", "i64")
"""Their names in PIR."""
LEGACY = ".pdmodel"
PRESENT_NAMES = {
    "elementwise_div": "divide",
    "bilinear_interp_v2": "bilinear_interp",
    "nearest_interp_v2": "nearest_interp",
    "brelu": "hardtanh",
    "elementwise_floordiv": "floor_divide",
    "lookup_table_v2": "embedding",
}
"""Names of operators in legacy programs, and in PIR."""
LEGACY_INPUTS = (
    "X", "Input", "Y", "OutSize", "SizeTensor", "Scale", "PreState", "WeightList", "SequenceLength",
    "Ids", "W",
)  # fmt: skip
"""Their order in PIR; a legacy operator has those that it names, and others."""
REPEATING = frozenset(
    [
        "assign", "cast", "concat", "expand", "flatten", "flatten_contiguous_range", "reshape",
        "slice", "split", "squeeze", "stack", "tile", "transpose", "unsqueeze",
    ]
)  # fmt: skip
"""Operators whose outputs have only values of their first input; a legacy one may end in a 2."""


@dataclass(frozen=True, slots=True)
class Operator:
    """`name` is that of PIR, without its dialect. Unknown shapes and absent inputs are None.

    `used` tells for each output whether another operator reads it. `integer` is true if the first
    output has an integer type. `source` names the input of the program that the first input
    repeats, as it is or in another shape; it is empty for other values.
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
    """Return the operators of a program, those of inner blocks among them.

    Raises BackendError if the file is not a program.
    """
    try:
        if program.suffix == LEGACY:
            return list(_legacy(program.read_bytes()))
        regions = json.loads(program.read_bytes())["program"]["regions"]
        used: set[int] = set()
        read = list(_read(regions, {}, {}, used))
    except OSError as error:
        raise BackendError(f"{program.name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BackendError(f"{program.name} is not a Paddle program") from error
    return [
        replace(each, used=tuple(number in used for number in numbers)) for each, numbers in read
    ]


def _read(
    regions: Sequence[Mapping[str, Any]],
    shapes: dict[int, Shape | None],
    sources: dict[int, str],
    used: set[int],
) -> Iterator[tuple[Operator, list[int]]]:
    """Yield each operator and the numbers of its outputs; collect the numbers that are read."""
    for region in regions:
        for block in region["blocks"]:
            for each in block["ops"]:
                made = each.get("O", [])
                made = made if isinstance(made, list) else [made]  # a parameter has one value
                shapes |= {value["%"]: _shape(value.get("TT", {})) for value in made}
                taken = [value["%"] for value in each.get("I", [])]
                used.update(taken)
                name = each["#"].partition(".")[2].rstrip("_")
                attributes = each["A"] if name else []  # those of a parameter have no names
                numbers = [value["%"] for value in made]
                given = {one["N"]: _value(one["AT"]) for one in attributes}
                source = sources.get(taken[0], "") if taken else ""
                if name == "data":
                    sources |= dict.fromkeys(numbers, str(given["name"]))
                elif name in REPEATING:
                    sources |= dict.fromkeys(numbers, source)
                operator = Operator(
                    name,
                    given,
                    tuple(map(shapes.get, taken)),
                    tuple(map(shapes.get, numbers)),
                    integer=bool(made) and _is_integer(made[0].get("TT", {})),
                    source=source,
                )
                yield operator, numbers
                yield from _read(each.get("regions", []), shapes, sources, used)


def _value(attribute: Mapping[str, Any]) -> Any:
    value = attribute.get("D")
    if attribute["#"].endswith("a_array"):
        return [_value(each) for each in value or ()]
    return value


def _shape(kind: Mapping[str, Any]) -> Shape | None:
    return tuple(kind["D"][1]) if kind.get("#", "").endswith("t_dtensor") else None


def _is_integer(kind: Mapping[str, Any]) -> bool:
    dense = kind.get("#", "").endswith("t_dtensor")
    return dense and str(kind["D"][0]["#"]).rpartition("_")[2] in INTEGERS


def _legacy(program: bytes) -> Iterator[Operator]:
    """Read a program of Paddle 2 with the message classes of Paddle's package."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    [root] = importlib.util.find_spec("paddle").submodule_search_locations  # type: ignore[union-attr, misc]
    spec = importlib.util.spec_from_file_location(
        "framework_pb2", f"{root}/base/proto/framework_pb2.py"
    )
    messages = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(messages)  # type: ignore[union-attr]
    try:
        read = messages.ProgramDesc.FromString(program)
    except DecodeError as error:
        raise ValueError("not a program") from error
    shapes: dict[str, Shape] = {}
    for block in read.blocks:
        for variable in block.vars:
            if variable.type.HasField("dense_tensor"):
                shapes[variable.name] = tuple(variable.type.dense_tensor.tensor.dims)
    sources: dict[str, str] = {}
    for block in read.blocks:
        for each in block.ops:
            name = PRESENT_NAMES.get(each.type, each.type)
            given = {one.parameter: list(one.arguments) for one in each.inputs}
            order = [one for one in LEGACY_INPUTS if one in given]
            firsts = [(given[parameter] or [""])[0] for parameter in order]
            # XShape is no tensor: it keeps a shape for the gradient, with an axis more.
            made = [one.arguments[0] for one in each.outputs if one.parameter != "XShape"]
            source = sources.get(firsts[0], "") if firsts else ""
            if name == "feed":
                sources[made[0]] = made[0]
            elif name.removesuffix("2") in REPEATING:
                sources |= dict.fromkeys(made, source)
            yield Operator(
                name,
                {one.name: _legacy_value(one) for one in each.attrs},
                tuple(map(shapes.get, firsts)),
                tuple(map(shapes.get, made)),
                source=source,
            )


def _legacy_value(attribute: Any) -> Any:
    for kind in ("i", "f", "s", "b", "l", "float64"):
        if attribute.HasField(kind):
            return getattr(attribute, kind)
    return list(attribute.floats or attribute.ints or attribute.longs)

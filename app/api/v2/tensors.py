"""Tensors on the wire of the Open Inference Protocol v2: JSON, and the binary tensor extension.

A request's declared shapes, sizes and types are compared with each other, with the bytes that came
and with the model's own inputs before anything of the declared size is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import orjson

from app.contracts.errors import InvalidTensor
from app.contracts.tensors import DTYPES, Array, Tensors, TensorSpec

NAMES: Mapping[str, str] = {dtype: dtype.upper().replace("FLOAT", "FP") for dtype in DTYPES}
"""The protocol's name of each type that a model can take or give: INT64, FP32, …"""

DATATYPES: Mapping[str, str] = {name: dtype for dtype, name in NAMES.items()}
LEAVES: Mapping[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""What JSON may hold for each kind of NumPy type."""

MAX_ID_CHARACTERS = 256
MAX_LISTS = 2**18
"""Lists and objects in one request's JSON. Each takes thirty times the memory of its two brackets
and more time than many numbers, and all are made before the first can be looked at."""

BINARY_HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """A request as the client meant it; every tensor fits the model. `binary` names outputs."""

    inputs: Tensors
    outputs: tuple[str, ...]
    binary: frozenset[str]
    id: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


def parse_request(
    body: bytes,
    *,
    header_length: int | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> InferRequest:
    """Read one body; `header_length` bytes of JSON, then raw tensors (None: all JSON).

    Raises InvalidTensor naming the tensor and what was expected of it.
    """
    if header_length is not None and not 0 <= header_length <= len(body):
        raise InvalidTensor(
            f"{BINARY_HEADER} says {header_length} bytes of JSON, the body has {len(body)}",
            limit=len(body),
            received=header_length,
        )
    split = len(body) if header_length is None else header_length
    document = _object(_json(body[:split]), "the request")
    parameters = _object(document.get("parameters", {}), "parameters")
    found = _inputs(document.get("inputs"), memoryview(body)[split:], inputs)
    wanted, binary = _outputs(document.get("outputs"), parameters, outputs)
    return InferRequest(
        inputs=found,
        outputs=wanted,
        binary=binary,
        id=_id(document.get("id")),
        parameters={key: value for key, value in parameters.items() if key != "binary_data_output"},
    )


def write_response(
    outputs: Tensors, request: InferRequest, *, model: str, version: int
) -> tuple[bytes, int | None]:
    """The reply's body, and the length of its JSON part where raw tensors follow it."""
    listed: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name in request.outputs:
        array = outputs[name]
        entry: dict[str, Any] = {
            "name": name,
            "datatype": NAMES[array.dtype.name],
            "shape": array.shape,
        }
        if name in request.binary:
            raw.append(np.ascontiguousarray(array).tobytes())
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            flat = np.ascontiguousarray(array).reshape(-1)
            # orjson has no float16; float32 holds each of its values exactly.
            entry["data"] = flat.astype(np.float32) if flat.dtype == np.float16 else flat
        listed.append(entry)
    document: dict[str, Any] = {
        "model_name": model,
        "model_version": str(version),
        "outputs": listed,
    }
    if request.id is not None:
        document["id"] = request.id
    header = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join([header, *raw]), len(header) if raw else None


def _json(text: bytes) -> Any:
    lists = text.count(b"[") + text.count(b"{")  # those in strings, too: no name needs many
    if lists > MAX_LISTS:
        raise InvalidTensor(
            f"the JSON has {lists} lists and objects, the limit is {MAX_LISTS}; tensors that are "
            f"nested so finely can be sent as one flat list, or raw with {BINARY_HEADER}",
            limit=MAX_LISTS,
            received=lists,
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidTensor(f"the request is not JSON from character {error.pos}") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidTensor(f"{what} must be a JSON object")
    return value


def _id(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_ID_CHARACTERS:
        raise InvalidTensor(
            f"id must be a string of at most {MAX_ID_CHARACTERS} characters",
            limit=MAX_ID_CHARACTERS,
        )
    return value


def _inputs(listed: Any, raw: memoryview, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    if not isinstance(listed, list):
        raise InvalidTensor("inputs must be a list of tensors")
    known = {spec.name: spec for spec in specs}
    found: dict[str, Array] = {}
    used = 0
    for number, item in enumerate(listed):
        entry = _object(item, f"inputs[{number}]")
        name = entry.get("name")
        if not isinstance(name, str) or name not in known:
            raise InvalidTensor(
                f"inputs[{number}]: the model has no such input, it has {', '.join(known)}"
            )
        if name in found:
            raise InvalidTensor(f"input {name!r} is there twice")
        shape = _shape(name, entry.get("shape"), known[name])
        _check_datatype(name, entry.get("datatype"), known[name])
        dtype = np.dtype(known[name].dtype)
        parameters = _object(entry.get("parameters", {}), f"inputs[{number}].parameters")
        if "shared_memory_region" in parameters:
            raise InvalidTensor(
                f"input {name!r}: shared memory is not offered, "
                f"send data or raw tensors with {BINARY_HEADER}"
            )
        size = parameters.get("binary_data_size")
        if size is None:
            found[name] = _from_json(name, entry.get("data"), shape, dtype)
            continue
        if "data" in entry:
            raise InvalidTensor(f"input {name!r} has both data and binary_data_size")
        needed = math.prod(shape) * dtype.itemsize
        if type(size) is not int or size != needed:
            raise InvalidTensor(
                f"input {name!r}: shape {list(shape)} of {dtype.name} is {needed} bytes, "
                f"binary_data_size is something else",
                limit=needed,
                received=size if type(size) is int else None,
            )
        if used + size > len(raw):
            raise InvalidTensor(
                f"input {name!r} needs {size} bytes after the JSON, {len(raw) - used} are left",
                limit=size,
                received=len(raw) - used,
            )
        found[name] = _from_bytes(name, raw[used : used + size], shape, dtype)
        used += size
    if used != len(raw):
        raise InvalidTensor(
            f"{len(raw)} bytes follow the JSON, the inputs account for {used}",
            limit=used,
            received=len(raw),
        )
    if missing := [name for name in known if name not in found]:
        raise InvalidTensor(f"inputs are missing: {', '.join(missing)}")
    return found


def _shape(name: str, value: Any, spec: TensorSpec) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else [None]
    if not set(map(type, sizes)) <= {int} or min(sizes, default=1) < 1:
        raise InvalidTensor(f"input {name!r}: shape must be a list of positive integers")
    if len(value) != len(spec.shape) or any(
        want not in (-1, got) for want, got in zip(spec.shape, value, strict=True)
    ):
        raise InvalidTensor(
            f"input {name!r} must have shape {list(spec.shape)} (-1 is free), "
            f"received {len(value)} axes: {str(value[:8])[:80]}"
        )
    return tuple(value)


def _check_datatype(name: str, value: Any, spec: TensorSpec) -> None:
    expected = NAMES[spec.dtype]
    if value != expected:
        received = value if isinstance(value, str) and value in DATATYPES else "something else"
        raise InvalidTensor(
            f"input {name!r} must have datatype {expected}, received {received}",
            limit=expected,
            received=received,
        )


def _from_bytes(name: str, raw: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype == np.bool_:
        octets = np.frombuffer(raw, np.uint8)
        if octets.max(initial=0) > 1:
            raise InvalidTensor(f"input {name!r}: a BOOL must be a byte of 0 or 1")
        return octets.view(np.bool_).reshape(shape)
    return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape)


def _from_json(name: str, data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Data is a flat list in row-major order, or lists nested as deep as the shape."""
    if not isinstance(data, list):
        raise InvalidTensor(f"input {name!r} must have data: a list")
    leaves = _leaves(name, data, shape)
    # From anything else NumPy would make what we did not ask for: of strings an array in which
    # each takes as much as the longest, of null a NaN.
    if not set(map(type, leaves)) <= LEAVES[dtype.kind]:
        raise InvalidTensor(f"input {name!r}: data must be numbers that {dtype.name} can hold")
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which the model refuses
            return np.array(leaves, dtype).reshape(shape)
    except OverflowError:
        bounds = np.iinfo(dtype)
        raise InvalidTensor(
            f"input {name!r}: {dtype.name} holds {bounds.min} to {bounds.max}",
            limit=int(bounds.max),
        ) from None


def _leaves(name: str, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """The innermost values, one for each place of `shape`; unfolded axis by axis, so that nothing
    larger than the shape is ever made of lists that do not fit it."""
    count = math.prod(shape)
    nested = len(shape) > 1 and bool(data) and isinstance(data[0], list)
    level = [data]
    for axis, size in enumerate(shape if nested else (count,)):
        if set(map(type, level)) != {list} or set(map(len, level)) != {size}:
            received = f"another length or depth on axis {axis}" if nested else f"{len(data)}"
            raise InvalidTensor(
                f"input {name!r}: shape {list(shape)} needs {count} numbers, flat or nested alike; "
                f"received {received}",
                limit=count,
                received=None if nested else len(data),
            )
        level = list(chain.from_iterable(level))
    return level


def _outputs(
    listed: Any, parameters: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> tuple[tuple[str, ...], frozenset[str]]:
    known = [spec.name for spec in specs]
    all_binary = _flag(parameters, "binary_data_output")
    if listed is None or listed == []:
        return tuple(known), frozenset(known if all_binary else ())
    if not isinstance(listed, list):
        raise InvalidTensor("outputs must be a list")
    wanted: list[str] = []
    binary: set[str] = set()
    for number, item in enumerate(listed):
        entry = _object(item, f"outputs[{number}]")
        name = entry.get("name")
        if name not in known or name in wanted:
            raise InvalidTensor(
                f"outputs[{number}]: the model has no such output, or it is there twice; "
                f"it has {', '.join(known)}"
            )
        own = _object(entry.get("parameters", {}), f"outputs[{number}].parameters")
        if unknown := sorted(set(own) - {"binary_data"}):
            raise InvalidTensor(
                f"outputs[{number}]: {len(unknown)} unknown parameters, binary_data is the only one"
            )
        wanted.append(name)
        if _flag(own, "binary_data", all_binary):
            binary.add(name)
    return tuple(wanted), frozenset(binary)


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidTensor(f"parameter {name} must be true or false")
    return value

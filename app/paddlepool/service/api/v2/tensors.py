"""Tensors of the Open Inference Protocol v2: JSON, the binary tensor extension, byte strings.

This module compares a declared shape with the received data before it allocates memory of that
size. The engine checks whether the tensors fit the model (`ServedModel.checked`).
"""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import InvalidTensor
from paddlepool.contracts.tensors import DTYPES, STRINGS, Array, TensorSpec, strings_of

NAMES: Mapping[str, str] = {
    **{dtype: dtype.upper().replace("FLOAT", "FP") for dtype in DTYPES},
    STRINGS: "BYTES",
}
"""Protocol names of the data types of models (INT64, FP32, …) and of tasks (BYTES)."""

DATATYPES: Mapping[str, str] = {name: dtype for dtype, name in NAMES.items()}
LEAVES: Mapping[str, set[type]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "O": {str, bytes},
}
"""Python types accepted for each kind of NumPy type. Strings are `str` in JSON, `bytes` in gRPC."""

MAX_AXES = 32
"""Maximum axes of a tensor: some NumPy versions create no array with more."""
MAX_VALUES = 10**12
"""Maximum values of a tensor by its shape, far above what a body can hold."""

BASE64 = "base64"
"""The `content_type` of strings that contain bytes in base64."""

NO_SHARED_MEMORY = "shared memory is not supported"
BINARY_HEADER = "Inference-Header-Content-Length"


def read_inputs(
    listed: Any,
    raw: memoryview,
    specs: Sequence[TensorSpec],
    *,
    of_task: bool = False,
    content_type: Any = None,
) -> dict[str, Array]:
    """Read the tensors of a request's `inputs`; `raw` contains the bytes after its JSON.

    `specs` describe the inputs that the model or task has. Inputs that the request lacks are not in
    the result; the caller decides whether they are required. With `of_task`, the shape of a tensor
    is checked before its strings are read; an additional last axis of size 1 is accepted and
    dropped. `content_type` is the default for inputs that name none. Raises InvalidTensor.
    """
    if not isinstance(listed, list):
        raise InvalidTensor("inputs must be a list of tensors")
    known = {spec.name: spec for spec in specs}
    arrays: dict[str, Array] = {}
    used = 0
    for number, item in enumerate(listed):
        entry = as_object(item, f"inputs[{number}]")
        name = entry.get("name")
        if not isinstance(name, str) or name not in known:
            raise InvalidTensor(
                f"inputs[{number}]: the model has no such input, it has {', '.join(known)}"
            )
        if name in arrays:
            raise InvalidTensor(f"input {name!r} occurs twice")
        parameters = parameters_of(entry, f"inputs[{number}]")
        shape = _shape(name, entry.get("shape"))
        final = _task_shape(known[name], shape) if of_task else shape
        received, datatype = entry.get("datatype"), NAMES[known[name].dtype]
        if received != datatype:
            if not isinstance(received, str) or received not in DATATYPES:
                received = "something else"
            raise InvalidTensor(
                f"input {name!r} must have datatype {datatype}, received {received}"
            )
        dtype = np.dtype(known[name].dtype)
        if "shared_memory_region" in parameters:
            raise InvalidTensor(f"input {name!r}: {NO_SHARED_MEMORY}, send data or raw tensors")
        size = parameters.get("binary_data_size")
        if size is None:
            array = _from_json(name, entry.get("data"), shape, dtype)
        else:
            if entry.get("data") is not None:
                raise InvalidTensor(f"input {name!r} has both data and binary_data_size")
            size = _binary_size(name, size, shape, dtype)
            if used + size > len(raw):
                raise InvalidTensor(
                    f"input {name!r} needs {size} bytes after the JSON, {len(raw) - used} are left"
                )
            array = _from_bytes(name, raw[used : used + size], shape, dtype)
            used += size
        if dtype == np.object_ and parameters.get("content_type", content_type) == BASE64:
            array = _from_base64(name, array)
        arrays[name] = array.reshape(final)
    if used != len(raw):
        raise InvalidTensor(f"{len(raw)} bytes follow the JSON, the inputs use {used}")
    return arrays


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Return the value if it is a JSON object. Raises InvalidTensor, whose message names `what`."""
    if not isinstance(value, dict):
        raise InvalidTensor(f"{what} must be a JSON object")
    return value


def parameters_of(entry: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the `parameters` of a request, an input or an output, without nulls.

    Raises InvalidTensor, whose message names `where`, if they are no object or content_type is no
    string.
    """
    value = entry.get("parameters")
    what = f"{where}.parameters" if where else "parameters"
    parameters = as_object({} if value is None else value, what)
    if not isinstance(parameters.get("content_type"), str | None):
        raise InvalidTensor(f"{what}: content_type must be a string")
    return {name: value for name, value in parameters.items() if value is not None}


def _task_shape(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a task reads: [n, 1], which MLServer's codecs send, becomes [n].

    Raises InvalidTensor for a shape that `spec` does not admit.
    """
    if spec.admits_shape(shape):
        return shape
    if shape[-1:] == (1,) and spec.admits_shape(shape[:-1]):
        return shape[:-1]
    raise InvalidTensor(
        f"input {spec.name!r} must have the shape {list(spec.shape)} (-1 is free), "
        f"received {list(shape)}"
    )


def _shape(name: str, value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else [None]
    numbers = set(map(type, sizes)) <= {int} and min(sizes, default=1) > 0
    if not numbers or len(sizes) > MAX_AXES:
        raise InvalidTensor(
            f"input {name!r}: shape must be a list of at most {MAX_AXES} positive integers"
        )
    if math.prod(sizes) > MAX_VALUES:  # also keeps long numbers out of other messages
        raise InvalidTensor(f"input {name!r}: shape has more than {MAX_VALUES:,} values")
    return tuple(sizes)


def _binary_size(name: str, size: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    needed = math.prod(shape) * dtype.itemsize
    if dtype == np.object_:  # the lengths of strings are inside the raw bytes
        if type(size) is not int or size < 0:
            raise InvalidTensor(f"input {name!r}: binary_data_size must be a number of bytes")
    elif type(size) is not int or size != needed:
        raise InvalidTensor(
            f"input {name!r}: shape {list(shape)} of {dtype.name} is {needed} bytes, "
            "but its raw data or binary_data_size differs"
        )
    return size


def _from_bytes(name: str, raw: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype == np.object_:
        return read_strings(name, raw, shape)
    if dtype == np.bool_:
        octets = np.frombuffer(raw, np.uint8)
        if octets.max(initial=0) > 1:
            raise InvalidTensor(f"input {name!r}: a BOOL must be a byte of 0 or 1")
        return octets.view(np.bool_).reshape(shape)
    return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape)


def _from_json(name: str, data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Convert `data`, a flat list in row-major order or lists nested as deep as the shape.

    Raises InvalidTensor if the number, the nesting or the type of the values is wrong, if `dtype`
    cannot hold an integer, and for a string with a lone surrogate.
    """
    if not isinstance(data, list):
        raise InvalidTensor(f"input {name!r} must have data: a list")
    leaves = _leaves(name, data, shape)
    # NumPy would convert other types silently: null to NaN, and strings to an array in which each
    # takes as much memory as the longest.
    if not set(map(type, leaves)) <= LEAVES[dtype.kind]:
        what = "strings" if dtype == np.object_ else f"numbers that {dtype.name} can hold"
        raise InvalidTensor(f"input {name!r}: data must be {what}")
    try:
        if dtype == np.object_:
            items = [leaf if isinstance(leaf, bytes) else leaf.encode() for leaf in leaves]
            return strings_of(items, shape)
        with np.errstate(over="ignore"):  # overflow gives infinity, which the engine rejects
            return np.array(leaves, dtype).reshape(shape)
    except UnicodeEncodeError:
        raise InvalidTensor(
            f"input {name!r} contains a lone surrogate, which is not a character"
        ) from None
    except OverflowError:
        bounds = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        raise InvalidTensor(
            f"input {name!r}: {dtype.name} holds {bounds.min} to {bounds.max}"
        ) from None


def _leaves(name: str, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Return the innermost values, one for each element of `shape`.

    Each axis is checked before it is flattened, so no list grows to more values than the shape has.
    Raises InvalidTensor.
    """
    count = math.prod(shape)
    nested = len(shape) > 1 and bool(data) and isinstance(data[0], list)
    level = [data]
    for axis, size in enumerate(shape if nested else (count,)):
        if set(map(type, level)) != {list} or set(map(len, level)) != {size}:
            received = f"another length or depth on axis {axis}" if nested else f"{len(data)}"
            raise InvalidTensor(
                f"input {name!r}: shape {list(shape)} needs {count} values, flat or nested alike; "
                f"received {received}"
            )
        level = list(chain.from_iterable(level))
    return level


LENGTH_BYTES = 4


def read_strings(name: str, raw: memoryview, shape: tuple[int, ...]) -> NDArray[np.object_]:
    """Read strings, each preceded by its length in four bytes, little-endian.

    Raises InvalidTensor unless `raw` contains exactly the strings of `shape`.
    """
    count = math.prod(shape)
    if count * LENGTH_BYTES > len(raw):
        raise InvalidTensor(
            f"input {name!r}: shape {list(shape)} is {count} strings, which need more than the "
            f"{len(raw)} received bytes"
        )
    items: list[bytes] = []
    at = 0
    for _ in range(count):
        end = at + LENGTH_BYTES
        size = int.from_bytes(raw[at:end], "little")
        if end + size > len(raw):
            raise InvalidTensor(
                f"input {name!r}: string {len(items) + 1} of {count} should have {size} bytes, "
                f"{max(0, len(raw) - end)} are left"
            )
        items.append(bytes(raw[end : end + size]))
        at = end + size
    if at != len(raw):
        raise InvalidTensor(
            f"input {name!r}: {len(raw)} bytes were received, its {count} strings use {at}"
        )
    return strings_of(items, shape)


def _from_base64(name: str, array: Array) -> NDArray[np.object_]:
    try:
        items = [base64.b64decode(item, validate=True) for item in array.reshape(-1).tolist()]
    except binascii.Error:
        raise InvalidTensor(
            f"input {name!r} is not {BASE64}, although its content_type says so"
        ) from None
    return strings_of(items, array.shape)


def write_strings(array: NDArray[Any]) -> bytes:
    """Write strings in the format that read_strings() reads."""
    items: list[bytes] = array.reshape(-1).tolist()
    return b"".join(
        part for item in items for part in (len(item).to_bytes(LENGTH_BYTES, "little"), item)
    )


def classified(
    array: NDArray[Any], count: int, labels: Sequence[str], *, batched: bool
) -> NDArray[np.object_]:
    """Return the `count` largest values of each row as strings `value:index:label`, largest first.

    This is Triton's classification extension. A row is an item of the first axis, or the whole
    array if not `batched`; all its values are one list. An index without a label gives
    `value:index`. The result has the shape [rows, count], or [count] if not `batched`; `count` is
    at most the number of values in a row.
    """
    rows = array.reshape(array.shape[0] if batched else 1, -1)
    count = min(count, rows.shape[1])
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    number = "{:f}" if array.dtype.kind == "f" else "{:d}"
    items = [
        ":".join((number.format(row[at].item()), str(at), *labels[at : at + 1])).encode()
        for row, places in zip(rows, best.tolist(), strict=True)
        for at in places
    ]
    return strings_of(items, (len(rows), count) if batched else (count,))

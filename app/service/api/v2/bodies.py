"""Bodies of inference requests and replies: a JSON document, optionally followed by raw tensors."""

from typing import Any

import numpy as np
import orjson

from app.contracts.errors import InvalidTensor
from app.contracts.tensors import Array, Tensors
from app.engine.dataplane import TensorRequest
from app.service.api.services import LARGE_BYTES, base64_parts
from app.service.api.v2.documents import IGNORED, Expected, ReplyForm, read_document
from app.service.api.v2.tensors import (
    BASE64,
    BINARY_HEADER,
    NAMES,
    as_object,
    classified,
    write_strings,
)
from app.settings.server import Settings

MAX_LISTS = 2**18
"""Maximum lists and objects in one request's JSON. Each takes thirty times the memory of its two
brackets, and more time than many numbers. The parser creates all of them before any is checked."""

NUMBER_BYTES = 10
"""Approximate bytes of a number in JSON."""

PART_NUMBERS = 16_384
"""Numbers written in one call, which takes half a millisecond. Between calls the interpreter can
switch from the writing thread to the event loop."""


def parse_request(
    body: bytes,
    *,
    header_length: int | None,
    expected: Expected,
    settings: Settings,
) -> TensorRequest:
    """Parse a body: `header_length` bytes of JSON, then raw tensors (None: all JSON).

    The returned request's state is its ReplyForm. Raises InvalidTensor.
    """
    if header_length is not None and not 0 <= header_length <= len(body):
        raise InvalidTensor(
            f"{BINARY_HEADER} says {header_length} bytes of JSON, the body has {len(body)}"
        )
    split = len(body) if header_length is None else header_length
    return read_document(
        as_object(_json(body[:split]), "the request"),
        memoryview(body)[split:],
        expected=expected,
        settings=settings,
    )


def may_name_group(body: bytes, json_bytes: int) -> bool:
    """Whether the JSON at the start of an unparsed body may have a `predictor` parameter."""
    return body.find(b'"predictor"', 0, json_bytes) >= 0


def place_timeout(size: int, *, names_group: bool, settings: Settings) -> float | None:
    """Seconds to hold a place in the default group's queue while reading a body of `size` bytes.

    None for a small body, and for a body that may name another group, because the name of the group
    is unknown until the body is read.
    """
    if size <= LARGE_BYTES or names_group:
        return None
    return settings.timeout_max_ms / 1000


def _json(text: bytes) -> Any:
    lists = text.count(b"[") + text.count(b"{")  # also counts brackets in strings, which are rare
    if lists > MAX_LISTS:
        raise InvalidTensor(
            f"the JSON has {lists} lists and objects, the limit is {MAX_LISTS}; send such "
            f"tensors as one flat list, or raw with {BINARY_HEADER}"
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidTensor(f"the request is not valid JSON at character {error.pos}") from None


def written_size(outputs: Tensors, form: ReplyForm) -> int:
    """Estimate the bytes of JSON to write, and of numbers to sort for classification."""
    values = sum(
        outputs[name].size
        for name in form.outputs
        if name not in form.binary or name in form.classes
    )
    strings: list[bytes] = [
        item for name in form.base64 for item in outputs[name].reshape(-1).tolist()
    ]
    return NUMBER_BYTES * values + sum(map(len, strings))


def write_reply(
    outputs: Tensors, form: ReplyForm, *, model: str, version: int
) -> tuple[bytes, int | None]:
    """Write the reply's body; also return the length of its JSON, or None if all of it is JSON."""
    listed: list[bytes] = []
    raw: list[bytes | memoryview] = []
    for name in form.outputs:
        array = reply_tensor(name, outputs, form)
        entry: dict[str, Any] = {
            "name": name,
            "datatype": NAMES[array.dtype.name],
            "shape": array.shape,
        }
        if name in form.binary:
            content = raw_bytes(array)
            raw.append(content)
            entry["parameters"] = {"binary_data_size": len(content)}
            listed.append(orjson.dumps(entry))
        else:
            if name in form.base64:
                entry["parameters"] = {"content_type": BASE64}
                items: list[bytes] = array.reshape(-1).tolist()
                values = b",".join(b'"%b"' % b"".join(base64_parts(item)) for item in items)
            else:
                values = b",".join(_values(array.reshape(-1)))
            listed.append(b'%b,"data":[%b]}' % (_open(entry), values))
    document: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if form.id is not None:
        document["id"] = form.id
    if form.ignored:
        document["parameters"] = {IGNORED: form.ignored}
    header = b'%b,"outputs":[%b]}' % (_open(document), b",".join(listed))
    return b"".join([header, *raw]), len(header) if raw else None


def reply_tensor(name: str, outputs: Tensors, form: ReplyForm) -> Array:
    """Return an output, reduced to its largest values if the client requested classification."""
    if name not in form.classes:
        return outputs[name]
    count = form.classes[name]
    return classified(outputs[name], count, form.labels, batched=form.batched)


def raw_bytes(array: Array) -> bytes | memoryview:
    """Encode an array, little-endian and row-major. Contiguous numbers are not copied."""
    if array.dtype == np.object_:
        return write_strings(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _open(document: dict[str, Any]) -> bytes:
    """Write a JSON object without its closing bracket."""
    return orjson.dumps(document)[:-1]


def _values(flat: Array) -> list[bytes]:
    """Write the numbers or strings as JSON lists without brackets."""
    if flat.dtype == np.object_:
        return [orjson.dumps([item.decode() for item in flat.tolist()])[1:-1]]
    if flat.dtype == np.float16:
        flat = flat.astype(np.float32)  # lossless; orjson cannot write float16
    return [
        orjson.dumps(flat[at : at + PART_NUMBERS], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for at in range(0, len(flat), PART_NUMBERS)
    ]

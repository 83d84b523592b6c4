"""Bodies of inference requests and replies: a JSON document, and raw tensors that may follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from app.contracts.errors import InvalidTensor
from app.contracts.tensors import Array, Tensors
from app.engine.dataplane import TensorRequest
from app.service.api.offload import LARGE_BYTES, base64_parts
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
"""Lists and objects in one request's JSON. Each takes thirty times the memory of its two brackets
and more time than many numbers, and all are made before the first can be looked at."""

NUMBER_BYTES = 10
"""Approximate bytes of a number in JSON."""

PART_NUMBERS = 16_384
"""Numbers written in one call: half a millisecond, after which the interpreter can turn to the
event loop while the reply is written in a thread."""


def parse_request(
    body: bytes,
    *,
    header_length: int | None,
    expected: Expected,
    settings: Settings,
) -> TensorRequest:
    """Read one body; `header_length` bytes of JSON, then raw tensors (None: all JSON).

    The request's state is its ReplyForm. Raises InvalidTensor naming the tensor or the parameter
    and what was expected of it.
    """
    if header_length is not None and not 0 <= header_length <= len(body):
        raise InvalidTensor(
            f"{BINARY_HEADER} says {header_length} bytes of JSON, the body has {len(body)}",
            limit=len(body),
            received=header_length,
        )
    split = len(body) if header_length is None else header_length
    return read_document(
        as_object(_json(body[:split]), "the request"),
        memoryview(body)[split:],
        expected=expected,
        settings=settings,
    )


def may_name_group(body: bytes, json_bytes: int) -> bool:
    """Whether the JSON that a body begins with may have a `predictor`; it is not parsed yet."""
    return body.find(b'"predictor"', 0, json_bytes) >= 0


def place_timeout(size: int, *, names_group: bool, settings: Settings) -> float | None:
    """How long to hold a place in the default group's queue while a body of `size` bytes is read,
    in seconds.

    None for a small body, and where it may name another group: that is known when it is read.
    """
    if size <= LARGE_BYTES or names_group:
        return None
    return settings.timeout_max_ms / 1000


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


def written_size(outputs: Tensors, form: ReplyForm) -> int:
    """About how many bytes of JSON are to be written; a number that is sorted counts as one."""
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
    """The reply's body, and the length of its JSON part where raw tensors follow it."""
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
                values = _in_base64(array.reshape(-1))
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
    """An output as the client wants it."""
    if name not in form.classes:
        return outputs[name]
    count = form.classes[name]
    return classified(outputs[name], count, form.labels, batched=form.batched)


def raw_bytes(array: Array) -> bytes | memoryview:
    """The array as the protocol's raw tensors: little-endian in row-major order, without a copy
    where it lies so already."""
    if array.dtype == np.object_:
        return write_strings(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _open(document: dict[str, Any]) -> bytes:
    """A JSON object without its last bracket."""
    return orjson.dumps(document)[:-1]


def _in_base64(flat: Array) -> bytes:
    items: list[bytes] = flat.tolist()
    return b",".join(b'"%b"' % b"".join(base64_parts(item)) for item in items)


def _values(flat: Array) -> list[bytes]:
    """JSON lists of the numbers or strings, without brackets."""
    if flat.dtype == np.object_:
        return [orjson.dumps([item.decode() for item in flat.tolist()])[1:-1]]
    if flat.dtype == np.float16:
        flat = flat.astype(np.float32)  # orjson has no float16; this holds each of its values
    return [
        orjson.dumps(flat[at : at + PART_NUMBERS], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for at in range(0, len(flat), PART_NUMBERS)
    ]

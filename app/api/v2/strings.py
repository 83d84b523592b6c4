"""Tensors of byte strings (BYTES): each with its length before it, or as JSON strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.errors import InvalidTensor
from app.contracts.task_tensors import strings_of

LENGTH_BYTES = 4


def read_strings(name: str, raw: memoryview, shape: tuple[int, ...]) -> NDArray[np.object_]:
    """The strings in `raw`: a little-endian length of four bytes before each.

    Raises InvalidTensor unless they are as many as the shape has places for.
    """
    count = math.prod(shape)
    if count * LENGTH_BYTES > len(raw):
        raise InvalidTensor(
            f"input {name!r}: shape {list(shape)} is {count} strings, which need more than the "
            f"{len(raw)} bytes that came",
            limit=count * LENGTH_BYTES,
            received=len(raw),
        )
    items: list[bytes] = []
    at = 0
    for _ in range(count):
        end = at + LENGTH_BYTES
        size = int.from_bytes(raw[at:end], "little")
        if end + size > len(raw):
            raise InvalidTensor(
                f"input {name!r}: string {len(items) + 1} of {count} is said to have {size} bytes, "
                f"{max(0, len(raw) - end)} are left",
                limit=size,
                received=max(0, len(raw) - end),
            )
        items.append(bytes(raw[end : end + size]))
        at = end + size
    if at != len(raw):
        raise InvalidTensor(
            f"input {name!r}: {len(raw)} bytes came, its {count} strings account for {at}",
            limit=at,
            received=len(raw),
        )
    return strings_of(items, shape)


def encoded(name: str, leaves: Sequence[str], shape: tuple[int, ...]) -> NDArray[np.object_]:
    """JSON's strings as UTF-8. Raises InvalidTensor for half of a surrogate pair."""
    try:
        return strings_of([leaf.encode() for leaf in leaves], shape)
    except UnicodeEncodeError:
        raise InvalidTensor(
            f"input {name!r} holds half of a surrogate pair, which is no character"
        ) from None


def write_strings(array: NDArray[Any]) -> bytes:
    """As read_strings() takes them."""
    items: list[bytes] = array.reshape(-1).tolist()
    return b"".join(
        part for item in items for part in (len(item).to_bytes(LENGTH_BYTES, "little"), item)
    )


def classified(
    array: NDArray[Any], count: int, labels: Sequence[str], *, batched: bool
) -> NDArray[np.object_]:
    """The `count` largest values of each row as the strings `value:index:label`, largest first.

    Without a label the last part is left out. [rows, …] gives [rows, count], and [count] where no
    axis is the batch. Triton's classification extension.
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

"""Bodies that carry a picture as base64, in JSON or in a field of a form.

The data plane calls these functions when the request holds a place in the queue, because reading
a body is costly.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson

from app.contracts.errors import FileMissing, InvalidParameter

NOT_FETCHED = (
    "pictures are not fetched by address here, on purpose: a server that does can be sent to "
    "addresses that only it can reach; send the picture itself"
)
ADDRESSES = ("http://", "https://", "ftp://", "file://")


MAX_MARKS = 4_096
"""Brackets, colons and commas of a body. A picture in base64 has none of them, and what is made of
each would take far more memory and time than its byte."""


def json_object(body: bytes) -> dict[str, Any]:
    """The members of a JSON object. Raises InvalidParameter for anything else."""
    marks = sum(map(body.count, (b"[", b"{", b":", b",")))
    if marks > MAX_MARKS:
        raise InvalidParameter(
            f"the body has {marks} brackets, colons and commas, the limit is {MAX_MARKS}",
            limit=MAX_MARKS,
            received=marks,
        )
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidParameter(f"the body is not JSON from character {error.pos}") from None
    if not isinstance(document, dict):
        raise InvalidParameter("the body must be a JSON object")
    return document


def picture_in_base64(value: object, name: str) -> bytes:
    """The picture's bytes; a `data:` address before them is passed over.

    Raises FileMissing and InvalidParameter.
    """
    if value is None or value in ("", b""):
        raise FileMissing(f"{name} is missing: the picture, base64")
    if not isinstance(value, str | bytes):
        raise InvalidParameter(f"{name} must be a picture as base64", limit="base64")
    text = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    beginning = text[:8].lower()
    if beginning.startswith(tuple(each.encode() for each in ADDRESSES)):
        raise refused(name, NOT_FETCHED)
    if beginning.startswith(b"data:"):
        text = text[text.find(b",", 0, 256) + 1 :]
    try:
        picture = base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise InvalidParameter(f"{name} is not base64", limit="base64") from None
    if not picture:
        raise FileMissing(f"{name}: the picture has 0 bytes", received=0)
    return picture


def refused(name: str, why: str) -> InvalidParameter:
    """The refusal of a field by its name."""
    return InvalidParameter(f"{name}: {why}", errors=({"field": f"body.{name}", "message": why},))

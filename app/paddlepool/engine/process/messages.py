"""Messages between this process and a child, as JSON."""

import json
from collections.abc import Mapping
from typing import Any

import orjson


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON; NaN and infinity may become null. Raises TypeError for no JSON."""
    try:
        return orjson.dumps(message)
    except TypeError:  # a text with a lone surrogate, such as a path
        return json.dumps(message).encode()


def decoded(text: bytes | memoryview) -> Any:
    """Return what encoded() or `json.dumps` has made a text of. Raises ValueError for no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # it also rejects NaN and escaped lone surrogates
        try:
            return json.loads(bytes(text).decode())
        except RecursionError:
            raise ValueError("the message is nested too deep") from None

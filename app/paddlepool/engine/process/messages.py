"""Messages between this process and a child, as JSON. A child itself uses only `json`."""

import json
from collections.abc import Mapping
from typing import Any

import orjson


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON. NaN and infinity become null. Raises TypeError for no JSON."""
    try:
        return orjson.dumps(message)
    except TypeError:  # a text with a lone surrogate, such as a path, or a long integer
        return json.dumps(message).encode()


def decoded(text: bytes | memoryview) -> Any:
    """Return the value of a JSON text. Raises ValueError for anything else."""
    # Not orjson.loads: it keeps names of members for later texts, and does not compare them whole,
    # so that one child could change how the messages of others are read.
    try:
        return json.loads(bytes(text).decode())
    except RecursionError:
        raise ValueError("the message is nested too deep") from None

"""Parses the JSON of clients."""

from typing import Any

from pydantic_core import from_json


def parsed(text: bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises ValueError for anything else, for NaN, for nesting of more than 200 levels and for
    integers of more than 4,300 digits. Its message names the place, and repeats nothing of the
    text. A number above the range of a float is infinity.
    """
    # Not orjson.loads: it keeps names of members for later texts, and does not compare them whole,
    # so that one client could change how the requests of others are read.
    return from_json(text, allow_inf_nan=False, cache_strings="none")

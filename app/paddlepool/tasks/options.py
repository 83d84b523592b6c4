"""The base of a task's options: typed values that are checked once, wherever they come from."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from paddlepool.contracts.errors import InvalidParameter

MAX_CHARACTERS = 1_024
"""Maximum characters of a text, the same as for a field of a form."""
NUMBERS = re.compile(r"[\d.,%px ]{1,32}", re.ASCII)
"""Texts that an error may repeat: numbers, possibly with units."""


class Options(BaseModel):
    """Typed options of one request. Constructing one raises InvalidParameter for a wrong value.

    Texts of a query or a form are accepted, too: `booleans` and numbers are converted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    booleans: ClassVar[Mapping[str, bool]] = {"true": True, "false": False}
    expected: ClassVar[Mapping[str, str]] = {}
    """What an option must be, where its JSON schema does not say it."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _check(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        schema = schemas(cls)[name]
        if isinstance(value, str):
            kind = schema.get("type")
            is_flag = kind == "boolean"
            value = cls.booleans.get(value.lower(), value) if is_flag else _number(value, kind)
        try:
            if isinstance(value, str) and len(value) > MAX_CHARACTERS:
                raise ValueError("too long")
            return check(value)
        except ValueError:
            raise _refusal(name, value, cls.expected.get(name) or _expected(schema)) from None


@cache
def schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each field by name, without null as an alternative or default."""
    properties = model.model_json_schema()["properties"]
    merged = {
        name: {**schema, **schema.get("anyOf", [{}])[0]} for name, schema in properties.items()
    }
    for schema in merged.values():
        schema.pop("anyOf", None)
        del schema["title"]
        if schema.get("default", "") is None:
            del schema["default"]
    return merged


def _number(text: str, kind: str | None) -> float | str:
    """Return the number that a text stands for; the text if it is no number of the `kind`."""
    if kind == "integer":
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text
    with suppress(ValueError):
        return float(text) if kind == "number" else text
    return text


def _expected(schema: Mapping[str, Any]) -> str:
    if "minimum" in schema:
        what = "a number" if schema["type"] == "number" else "a whole number"
        return f"{what} from {schema['minimum']:g} to {schema['maximum']:g}"
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    return "true or false" if schema.get("type") == "boolean" else "a short text"


def _refusal(name: str, value: Any, expected: str) -> InvalidParameter:
    is_number = type(value) in (int, float) and math.isfinite(value)
    is_safe = is_number or (isinstance(value, str) and NUMBERS.fullmatch(value) is not None)
    return InvalidParameter(
        f"{name} must be {expected}" + (f", received {value}" if is_safe else ""),
        parameter=name,
        limit=expected.removeprefix("one of "),
        received=value if is_safe else None,
    )

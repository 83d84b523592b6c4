"""The base of a task's options: typed values that are checked once, wherever they come from."""

import math
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


def invalid(
    name: str, expected: str, *, received: float | str | None = None, limit: str | None = None
) -> InvalidParameter:
    """Build the error of an option that is not `expected`. `received` must be safe to repeat."""
    return InvalidParameter(
        f"{name} must be {expected}" + ("" if received is None else f", received {received}"),
        parameter=name,
        limit=limit or expected.removeprefix("one of "),
        received=received,
    )


class Options(BaseModel):
    """Typed options of one request. Constructing one raises InvalidParameter for a wrong value.

    Texts of a query or a form are accepted, too: `booleans` and numbers are converted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    booleans: ClassVar[Mapping[str, bool]] = {"true": True, "false": False}

    @field_validator("*", mode="wrap")
    @classmethod
    def _check(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        schema = schemas(cls)[name]
        if isinstance(value, str):
            if len(value) > MAX_CHARACTERS:
                expected = f"a text of at most {MAX_CHARACTERS} characters"
                raise invalid(name, expected, received=len(value), limit=f"{MAX_CHARACTERS}")
            kind = schema.get("type")
            is_flag = kind == "boolean"
            value = cls.booleans.get(value.lower(), value) if is_flag else _number(value, kind)
        try:
            return check(value)
        except ValueError:
            raise _refusal(name, value, schema) from None


@cache
def schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """The JSON schema of each field by name, with its description. Nulls are left out."""
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
    """The number that a text stands for, or the text itself if it stands for none."""
    if kind == "integer":
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text
    with suppress(ValueError):
        return float(text) if kind == "number" else text
    return text


def _refusal(name: str, value: Any, schema: Mapping[str, Any]) -> InvalidParameter:
    if "minimum" not in schema:
        return invalid(name, f"one of {', '.join(schema.get('enum', Options.booleans))}")
    limit = f"{schema['minimum']:g} to {schema['maximum']:g}"
    what = "a number" if schema["type"] == "number" else "a whole number"
    received = value if type(value) in (int, float) and math.isfinite(value) else None
    return invalid(name, f"{what} from {limit}", received=received, limit=limit)

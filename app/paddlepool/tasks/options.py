"""The base of a task's options: typed values that are checked once, wherever they come from."""

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
"""Maximum characters of a text."""
NUMBERS = re.compile(
    r"-?\d{1,9}(?:\.\d{1,6})?(?:px|%)?|\d{1,3}(?:px|%)?(?:[ ,]+\d{1,3}(?:px|%)?){1,4}", re.ASCII
)
"""Matches texts that an error may repeat: up to five numbers of at most 15 digits in all, each
possibly with the unit px or %."""
LARGEST = 1e15
"""An error repeats a number only if its absolute value is smaller than this."""


class Options(BaseModel):
    """Typed options of one request. Constructing one raises InvalidParameter for a wrong value.

    The values may be texts of a query or a form: a number or a boolean is then converted. For an
    unknown option, pydantic's ValidationError is raised.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    booleans: ClassVar[Mapping[str, bool]] = {"true": True, "false": False}
    """Texts in lower case that stand for a boolean; a request may write them in any case."""
    expected: ClassVar[Mapping[str, str]] = {}
    """What an option must be, by its name, if its JSON schema does not say it. Errors quote it."""
    limits: ClassVar[Mapping[str, str]] = {}
    """The `limit` of an error about an option, by its name, if it differs from `expected`."""

    @classmethod
    def may_lack_escapes(cls, error: InvalidParameter) -> bool:
        """Return whether a query in which % or # is not escaped may have caused the error.

        Such a character and what follows it can be lost. Therefore the result is true if the error
        rejects the value of an option of `expected`, and its `received` ends with neither % nor px.
        """
        expected = cls.expected.get(error.parameter or "")
        limit = cls.limits.get(error.parameter or "", expected)
        has_unit = str(error.received).endswith(("%", "px"))
        return expected is not None and error.limit == limit and not has_unit

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
            expected = cls.expected.get(name) or _expected(schema)
            raise _refusal(name, value, expected, cls.limits.get(name)) from None


@cache
def schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each field by name, without its title.

    The schema of an optional field has neither the type null nor a default of null.
    """
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
    """Return the number that a text stands for, or else the text itself.

    `kind` is the JSON schema's type: a text is converted only for `integer`, if it consists of at
    most nine digits, and for `number`.
    """
    if kind == "integer":
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text
    with suppress(ValueError):
        return float(text) if kind == "number" else text
    return text


def _expected(schema: Mapping[str, Any]) -> str:
    if "minimum" in schema:
        what = "a number" if schema["type"] == "number" else "a whole number"
        return f"{what} from {schema['minimum']:g} to {schema['maximum']:g}"
    if words := schema.get("enum"):
        return f"one of {', '.join(words)}" if len(words) > 1 else str(words[0])
    return "true or false" if schema.get("type") == "boolean" else "a text"


def _refusal(name: str, value: Any, expected: str, limit: str | None) -> InvalidParameter:
    is_number = type(value) in (int, float) and abs(value) < LARGEST  # excludes NaN and infinity
    is_safe = is_number or (isinstance(value, str) and NUMBERS.fullmatch(value) is not None)
    return InvalidParameter(
        f"{name} must be {expected}" + (f", received {value}" if is_safe else ""),
        parameter=name,
        limit=limit or re.sub("^(one of|a number from|a whole number from) ", "", expected),
        received=value if is_safe else None,
    )


def query_parameters(*models: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the fields of pydantic models as query parameters of an OpenAPI document.

    Every field must have a description. If two models have a field of one name, the last counts.
    """
    fields = {name: schema for model in models for name, schema in schemas(model).items()}
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema["description"],
            "schema": {key: value for key, value in schema.items() if key != "description"},
        }
        for name, schema in fields.items()
    ]

"""What a child answers, checked before it is believed: its code may be a stranger's by now."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import app.contracts.errors
from app.contracts.errors import (
    BackendError,
    InputError,
    ModelOutputInvalid,
    OperatorError,
    WorkerCrashed,
)
from app.contracts.tensors import Tensors

MESSAGE_CHARACTERS = 1000
LARGEST_NUMBER = sys.float_info.max

RAISED_BY_CHILDREN = (InputError, ModelOutputInvalid, OperatorError, WorkerCrashed)
"""What is said of a key, of another model or of this server is not for a child to say."""

Check = Callable[[Mapping[str, Any], Mapping[str, Any], Tensors], None]
"""Given what a call was sent, and the values and arrays that answer it; raises ValueError for what
the code that was started never answers. The arrays are the child's own memory still: their dtypes
and shapes stand, their values may change."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler returned, JSON values and arrays the caller owns, and how long it took.

    `seconds` are the child's own: how late the parent reads the reply is not in them.
    """

    meta: Mapping[str, Any]
    arrays: Tensors
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """`layout` is still to be checked against the block that it describes, by SharedArrays.read."""

    meta: Mapping[str, Any]
    layout: Sequence[object]
    seconds: float


def read_answer(text: bytes, *, opening: bool = False) -> Answer | Exception:
    """What a call returned, or the error it raised. Raises ValueError for anything else.

    That the system had nothing to give is for `opening` to say: a call's arrays are there.
    """
    try:
        answer = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("an answer is nested too deep") from None
    if not isinstance(answer, dict):
        raise ValueError("an answer is an object")
    if "error" in answer:
        return _error(answer["error"], opening=opening)
    meta, layout = answer.get("meta"), answer.get("arrays")
    seconds: Any = answer.get("seconds")
    if not isinstance(meta, dict) or not isinstance(layout, list):
        raise ValueError("an answer has values and arrays")
    if type(seconds) not in (int, float) or not 0 <= seconds <= LARGEST_NUMBER:
        raise ValueError("an answer says how many seconds it took")
    return Answer(meta, layout, float(seconds))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _error(described: object, *, opening: bool) -> Exception:
    if not isinstance(described, dict):
        raise ValueError("an error is an object")
    if opening and type(number := described.get("errno")) is int and 0 < number < 4096:
        return OSError(number, "the system had nothing to give for a child process")
    name, message = described.get("kind"), described.get("message")
    if not isinstance(name, str) or not isinstance(message, str):
        raise ValueError("an error has a kind and a message")
    kind = vars(app.contracts.errors).get(name)
    if (
        not isinstance(kind, type)
        or not issubclass(kind, RAISED_BY_CHILDREN)
        or kind in (InputError, OperatorError)  # the roots of many, themselves none
    ):
        kind = BackendError
    limit, received = _plain(described.get("limit")), _plain(described.get("received"))
    try:
        return kind(_text(message), limit=limit, received=received)
    except TypeError:  # Overloaded says when to come back; no child knows
        return BackendError("the backend raised an error")


def _plain(value: object) -> int | float | str | None:
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, int | float):
        return None
    if not abs(value) <= LARGEST_NUMBER:
        raise ValueError("an error's numbers are finite, and no larger than a float's")
    return value


def _text(value: str) -> str:
    value.encode()  # half of a pair of surrogates could be sent to nobody: raises a ValueError
    return value[:MESSAGE_CHARACTERS]

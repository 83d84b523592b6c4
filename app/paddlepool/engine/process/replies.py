"""Parses a child's replies and checks their types: an attacker's code may control the child."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paddlepool.contracts import errors
from paddlepool.contracts.sentences import sentence
from paddlepool.contracts.tensors import Tensors

MESSAGE_CHARACTERS = 1000

RAISED_BY_CHILDREN = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(
        kind,
        errors.InputError | errors.OperatorError | errors.ModelOutputInvalid | errors.WorkerCrashed,
    )
    and kind is not errors.InputError  # only its subclasses are raised
}
"""The errors that a child can raise, by name."""

Check = Callable[[Mapping[str, Any], Mapping[str, Any], Tensors], None]
"""Checks a reply: receives the request's values, and the reply's values and arrays.

Raises ValueError for a reply that only a compromised target sends, and a PaddlepoolError for one
that the target may send but its caller cannot use. The arrays' dtypes and shapes are fixed, but
their values may change: the child can still write to their memory."""


class Reply(NamedTuple):
    """A handler's result, with arrays that the caller owns.

    `seconds` is the duration of the handler's call, measured in the child.
    """

    meta: Mapping[str, Any]
    arrays: Tensors
    seconds: float


class Message(NamedTuple):
    """A reply whose `layout` is not checked yet; SharedArrays.read() does that."""

    meta: Mapping[str, Any]
    layout: Sequence[object]
    seconds: float


def parse_message(text: bytes, *, opening: bool = False) -> Message | Exception:
    """Return the result of a call, or the error that it raised. Raises ValueError if malformed.

    Set `opening` for the reply to the first call. Its error may be an OSError: the system lacked
    resources for opening the target.
    """
    # Not orjson.loads: it keeps names of members for later texts, and does not compare them whole,
    # so that one child could change how the messages of others are read.
    try:
        message = json.loads(text.decode())
    except RecursionError:
        raise ValueError("a reply is nested too deep") from None
    if not isinstance(message, dict):
        raise ValueError("a reply must be an object")
    if "error" in message:
        return _error(message["error"], opening=opening)
    meta, layout = message.get("meta"), message.get("arrays")
    seconds: Any = message.get("seconds")
    if not isinstance(meta, dict) or not isinstance(layout, list):
        raise ValueError("a reply must have values and arrays")
    if type(seconds) is not float or not 0 <= seconds < math.inf:
        raise ValueError("a reply must have its seconds")
    return Message(meta, layout, seconds)


def _error(described: object, *, opening: bool) -> Exception:
    if not isinstance(described, dict):
        raise ValueError("an error must be an object")
    if opening and type(number := described.get("errno")) is int and 0 < number < 4096:
        return OSError(number, "the system lacked resources for a child process")
    name, message = described.get("kind"), described.get("message")
    if not isinstance(name, str) or not isinstance(message, str):
        raise ValueError("an error must have a kind and a message")
    kind = RAISED_BY_CHILDREN.get(name, errors.BackendError)
    error = kind(
        message[:MESSAGE_CHARACTERS],
        limit=_plain(described.get("limit")),
        received=_plain(described.get("received")),
    )
    text = described.get("library_text")
    if isinstance(error, errors.BackendError) and isinstance(text, str):
        error.library_text = sentence(text[:MESSAGE_CHARACTERS])
    return error


def _plain(value: object) -> int | float | str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    return value if isinstance(value, int | float | str) else None

"""Bodies of inference requests and replies: a JSON document, and raw tensors that may follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from app.api.offload import LARGE_BYTES
from app.api.v2.tensors import BINARY_HEADER, NAMES, as_object, read_inputs
from app.contracts.errors import InvalidTensor
from app.contracts.tensors import Array, Tensors, TensorSpec
from app.dataplane import TensorRequest
from app.settings import Settings

PARAMETERS = ("predictor", "priority", "timeout", "binary_data_output")
MAX_ID_CHARACTERS = 256
MAX_LISTS = 2**18
"""Lists and objects in one request's JSON. Each takes thirty times the memory of its two brackets
and more time than many numbers, and all are made before the first can be looked at."""

NUMBER_BYTES = 10
"""What a number takes in JSON, about."""

PART_NUMBERS = 16_384
"""Numbers written in one call: half a millisecond, after which the interpreter can turn to the
event loop while the reply is written in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """What a client wants of the reply: its outputs by name, and which of them raw."""

    outputs: tuple[str, ...]
    binary: frozenset[str]
    id: str | None = None


def parse_request(
    body: bytes,
    *,
    header_length: int | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    settings: Settings,
) -> TensorRequest:
    """Read one body; `header_length` bytes of JSON, then raw tensors (None: all JSON).

    The request's state is its ReplyForm. Raises InvalidTensor naming the tensor or the parameter
    and what was expected of it.
    """
    if header_length is not None and not 0 <= header_length <= len(body):
        raise InvalidTensor(
            f"{BINARY_HEADER} says {header_length} bytes of JSON, the body has {len(body)}",
            limit=len(body),
            received=header_length,
        )
    split = len(body) if header_length is None else header_length
    document = as_object(_json(body[:split]), "the request")
    parameters = as_object(document.get("parameters", {}), "parameters")
    if unknown := set(parameters) - set(PARAMETERS):
        raise InvalidTensor(f"{len(unknown)} unknown parameters; there are {', '.join(PARAMETERS)}")
    group = parameters.get("predictor")
    if group is not None and not isinstance(group, str):
        raise InvalidTensor("parameter predictor must be the name of an instance group")
    timeout = _whole(parameters, "timeout", settings.timeout_max_ms * 1000)
    wanted, binary = _outputs(document.get("outputs"), parameters, outputs)
    return TensorRequest(
        inputs=read_inputs(document.get("inputs"), memoryview(body)[split:], inputs),
        group=group,
        priority=_whole(parameters, "priority", 1_000),
        timeout=_seconds(timeout, settings),
        state=ReplyForm(outputs=wanted, binary=binary, id=_id(document.get("id"))),
    )


def place_timeout(body: bytes, json_bytes: int, settings: Settings) -> float | None:
    """How long to hold a place in the default group's queue while the body is read, in seconds.

    None for a small body, and where it may name another group: that is known when it is read.
    """
    if len(body) <= LARGE_BYTES or body.find(b'"predictor"', 0, json_bytes) >= 0:
        return None
    return settings.timeout_max_ms / 1000


def _json(text: bytes) -> Any:
    lists = text.count(b"[") + text.count(b"{")  # those in strings, too: no name needs many
    if lists > MAX_LISTS:
        raise InvalidTensor(
            f"the JSON has {lists} lists and objects, the limit is {MAX_LISTS}; tensors that are "
            f"nested so finely can be sent as one flat list, or raw with {BINARY_HEADER}",
            limit=MAX_LISTS,
            received=lists,
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidTensor(f"the request is not JSON from character {error.pos}") from None


def _id(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_ID_CHARACTERS:
        raise InvalidTensor(
            f"id must be a string of at most {MAX_ID_CHARACTERS} characters",
            limit=MAX_ID_CHARACTERS,
        )
    return value


def _outputs(
    listed: Any, parameters: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of the outputs that are asked for, and which of them raw."""
    known = [spec.name for spec in specs]
    all_binary = _flag(parameters, "binary_data_output")
    if listed is None or listed == []:
        return tuple(known), frozenset(known if all_binary else ())
    if not isinstance(listed, list):
        raise InvalidTensor("outputs must be a list")
    wanted: list[str] = []
    binary: set[str] = set()
    for number, item in enumerate(listed):
        entry = as_object(item, f"outputs[{number}]")
        name = entry.get("name")
        if name not in known or name in wanted:
            raise InvalidTensor(
                f"outputs[{number}]: the model has no such output, or it is there twice; "
                f"it has {', '.join(known)}"
            )
        own = as_object(entry.get("parameters", {}), f"outputs[{number}].parameters")
        if unknown := set(own) - {"binary_data"}:
            raise InvalidTensor(
                f"outputs[{number}]: {len(unknown)} unknown parameters, binary_data is the only one"
            )
        wanted.append(name)
        if _flag(own, "binary_data", all_binary):
            binary.add(name)
    return tuple(wanted), frozenset(binary)


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidTensor(f"parameter {name} must be true or false")
    return value


def _whole(parameters: Mapping[str, Any], name: str, limit: int) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value <= limit:
        raise InvalidTensor(
            f"parameter {name} must be an integer from 0 to {limit}",
            limit=limit,
            received=value if type(value) is int and abs(value) < 2**53 else None,
        )
    return value


def _seconds(microseconds: int, settings: Settings) -> float:
    """A timeout as the protocol's other servers have it, too; 0 is the default."""
    return microseconds / 1e6 if microseconds else settings.timeout_default_ms / 1000


def json_size(outputs: Tensors, form: ReplyForm) -> int:
    """About how many bytes of JSON the reply will have."""
    return NUMBER_BYTES * sum(
        outputs[name].size for name in form.outputs if name not in form.binary
    )


def write_reply(
    outputs: Tensors, form: ReplyForm, *, model: str, version: int
) -> tuple[bytes, int | None]:
    """The reply's body, and the length of its JSON part where raw tensors follow it."""
    listed: list[bytes] = []
    raw: list[Array] = []
    for name in form.outputs:
        array = np.ascontiguousarray(outputs[name])
        entry: dict[str, Any] = {
            "name": name,
            "datatype": NAMES[array.dtype.name],
            "shape": outputs[name].shape,  # of a scalar, too, which is contiguous with one axis
        }
        if name in form.binary:
            raw.append(array)
            entry["parameters"] = {"binary_data_size": array.nbytes}
            listed.append(orjson.dumps(entry))
        else:
            numbers = b",".join(_numbers(array.reshape(-1)))
            listed.append(b'%b,"data":[%b]}' % (_open(entry), numbers))
    document = {"model_name": model, "model_version": str(version)}
    if form.id is not None:
        document["id"] = form.id
    header = b'%b,"outputs":[%b]}' % (_open(document), b",".join(listed))
    return b"".join([header, *(array.data for array in raw)]), len(header) if raw else None


def _open(document: dict[str, Any]) -> bytes:
    """A JSON object without its last bracket."""
    return orjson.dumps(document)[:-1]


def _numbers(flat: Array) -> list[bytes]:
    """JSON lists of the numbers, without brackets."""
    if flat.dtype == np.float16:
        flat = flat.astype(np.float32)  # orjson has no float16; this holds each of its values
    return [
        orjson.dumps(flat[at : at + PART_NUMBERS], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for at in range(0, len(flat), PART_NUMBERS)
    ]

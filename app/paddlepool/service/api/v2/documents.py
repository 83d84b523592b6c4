"""Documents of inference requests and replies: the JSON of HTTP bodies, which gRPC shares.

Raw tensors may follow the JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import orjson

from paddlepool.contracts.errors import InvalidTensor
from paddlepool.contracts.tensors import STRINGS, Array, Tensors, TensorSpec
from paddlepool.engine.dataplane import TensorRequest
from paddlepool.service.api.json_text import parsed
from paddlepool.service.api.routes import chosen_group
from paddlepool.service.api.services import base64_parts
from paddlepool.service.api.v2 import tensors
from paddlepool.service.api.v2.tensors import BASE64, BINARY_HEADER, NAMES, NO_SHARED_MEMORY
from paddlepool.settings.server import Settings

GROUP_PARAMETERS = ("instance_group", "predictor")
"""The parameter that names an instance group, and its alias."""
PARAMETERS = (*GROUP_PARAMETERS, "priority", "timeout", "binary_data_output", "content_type")
OUTPUT_PARAMETERS = ("binary_data", "classification", "content_type")
IGNORED = "ignored_parameters"
"""The reply parameter that lists the request's ignored parameters: those that are unknown, and for
a task `priority`."""
MAX_IGNORED = 64
"""Maximum ignored parameters that a reply lists, and maximum characters of each name."""
MAX_ID_CHARACTERS = 256
MAX_CLASSES = 1_000
SIMPLE = (str, int, float, bool)
"""The types that a task's own parameters may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The tensors and parameters of a model or a task, against which a request is checked.

    `options` are the names of the task's own parameters, or None for a model. A task's `optional`
    inputs may be omitted; its `opaque` outputs are strings of binary data. `labels` name the
    classes of a model's outputs; `batched` tells whether their first axis is the batch.
    """

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    options: tuple[str, ...] | None = None
    optional: frozenset[str] = frozenset()
    opaque: frozenset[str] = frozenset()
    labels: Sequence[str] = ()
    batched: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """The form of the reply that a client requested.

    `outputs` are the names of the outputs. Those in `binary` are raw, those in `base64` are strings
    in base64, and `classes` maps outputs to the number of largest values to return. `labels` and
    `batched` are those of Expected. `model` and `options` are parameters of a task; `ignored` lists
    the names of ignored parameters.
    """

    outputs: tuple[str, ...]
    binary: frozenset[str]
    base64: frozenset[str] = frozenset()
    id: str | None = None
    classes: Mapping[str, int] = field(default_factory=dict)
    labels: Sequence[str] = ()
    batched: bool = True
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    ignored: str = ""


def read_document(
    document: Mapping[str, Any],
    raw: memoryview,
    *,
    expected: Expected,
    settings: Settings,
    binary: bool = False,
    within: float | None = None,
) -> TensorRequest:
    """Validate a document and return the request, whose state is a ReplyForm.

    `raw` contains the raw tensors that the document declares. With `binary`, outputs are raw by
    default. `within` is the time in seconds that the client waits; None if it is unknown. The
    request's timeout is never longer. Raises InvalidTensor or InvalidParameter.
    """
    parameters = tensors.parameters_of(document)
    names = (name_in(parameters, name, of="an instance group") for name in GROUP_PARAMETERS)
    group = chosen_group(*names)
    # The protocol's timeout is in microseconds. 0 means the default, or if `within` is given, that
    # time up to timeout_max_ms.
    microseconds = _whole(parameters, "timeout", settings.timeout_max_ms * 1000)
    default_ms = settings.timeout_default_ms if within is None else settings.timeout_max_ms
    timeout = microseconds / 1e6 or default_ms / 1000
    form = _form(document, parameters, expected, binary)
    of_task = expected.options is not None
    inputs = tensors.read_inputs(
        document.get("inputs"),
        raw,
        expected.inputs,
        of_task=of_task,
        content_type=parameters.get("content_type"),
    )
    if of_task:  # the engine checks a model's inputs
        for spec in expected.inputs:
            if spec.name not in inputs and spec.name not in expected.optional:
                raise InvalidTensor(f"input {spec.name!r} is missing")
    return TensorRequest(
        inputs=inputs,
        group=group,
        priority=_whole(parameters, "priority", 1_000),
        timeout=timeout if within is None else min(timeout, within),
        state=form,
    )


def _form(
    document: Mapping[str, Any], parameters: Mapping[str, Any], expected: Expected, binary: bool
) -> ReplyForm:
    known = {spec.name: spec for spec in expected.outputs}
    all_binary = _flag(parameters, "binary_data_output", binary)
    own = _requested_outputs(document.get("outputs"), known) or {name: {} for name in known}
    strings = {name for name in own if known[name].dtype == STRINGS}
    raw = {name for name in own if _flag(own[name], "binary_data", all_binary)}
    classes = {name: _whole(own[name], "classification", MAX_CLASSES) for name in own}
    for name, count in classes.items():
        if count and (name in strings or expected.options is not None):
            raise InvalidTensor(f"output {name!r}: classification is for outputs of a model")
    request_id = document.get("id")
    if not isinstance(request_id, str | None) or len(request_id or "") > MAX_ID_CHARACTERS:
        raise InvalidTensor(f"id must be a string of at most {MAX_ID_CHARACTERS} characters")
    accepted, model = {*PARAMETERS}, None
    if expected.options is not None:
        accepted |= {"model", *expected.options}
        accepted.discard("priority")  # all jobs of a task have the same one
        model = name_in(parameters, "model", of="a model")
    unknown = (name for name in parameters if name not in accepted)
    return ReplyForm(
        outputs=tuple(own),
        binary=frozenset(raw),
        base64=frozenset(
            name
            for name in strings - raw
            if name in expected.opaque or own[name].get("content_type") == BASE64
        ),
        id=request_id,
        classes={name: count for name, count in classes.items() if count},
        labels=expected.labels,
        batched=expected.batched,
        model=model,
        options=_options(parameters, expected.options or ()),
        ignored=", ".join(sorted(name[:MAX_IGNORED] for name in islice(unknown, MAX_IGNORED))),
    )


def _requested_outputs(listed: Any, known: Mapping[str, TensorSpec]) -> dict[str, dict[str, Any]]:
    """Return the parameters of each output that the client lists; {} if it lists none.

    Raises InvalidTensor for an unknown or repeated output, and for an unknown parameter of one.
    """
    if not isinstance(listed, list | None):
        raise InvalidTensor("outputs must be a list")
    requested: dict[str, dict[str, Any]] = {}
    for number, item in enumerate(listed or []):
        where = f"outputs[{number}]"
        entry = tensors.as_object(item, where)
        name = entry.get("name")
        if not isinstance(name, str) or name not in known or name in requested:
            raise InvalidTensor(
                f"{where}: the model has no such output, or it is listed twice; "
                f"the outputs are {', '.join(known)}"
            )
        own = requested[name] = tensors.parameters_of(entry, where)
        if any(key.startswith("shared_memory_") for key in own):
            raise InvalidTensor(f"{where}: {NO_SHARED_MEMORY}")
        if unknown := set(own) - set(OUTPUT_PARAMETERS):
            raise InvalidTensor(
                f"{where}: {len(unknown)} unknown parameters; known are "
                f"{', '.join(OUTPUT_PARAMETERS)}"
            )
    return requested


def name_in(parameters: Mapping[str, Any], name: str, *, of: str) -> str | None:
    """Return the parameter `name`, or None if it is missing. Raises InvalidTensor if it is no text.

    `of` says in the error what the parameter names, such as "a model".
    """
    value = parameters.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidTensor(f"parameter {name} must be the name of {of}")
    return value


def _options(parameters: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        if name in parameters and type(parameters[name]) not in SIMPLE:
            raise InvalidTensor(f"parameter {name} must be a string, a number, true or false")
    return {name: parameters[name] for name in names if name in parameters}


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidTensor(f"parameter {name} must be true or false")
    return value


def _whole(parameters: Mapping[str, Any], name: str, limit: int) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value <= limit:
        raise InvalidTensor(f"parameter {name} must be an integer from 0 to {limit}")
    return value


MAX_LISTS = 2**18
"""Maximum lists and objects in one request's JSON. Each takes thirty times the memory of its two
brackets, and more time than many numbers. The parser creates all of them before any is checked."""

NUMBER_BYTES = 10
"""Approximate bytes of a number in JSON."""

PART_NUMBERS = 16_384
"""Numbers written in one call, which takes half a millisecond. Between calls the interpreter can
switch from the writing thread to the event loop."""


def parse_request(
    body: bytes, *, header_length: int | None, expected: Expected, settings: Settings
) -> TensorRequest:
    """Parse `header_length` bytes of JSON (None: all), then raw tensors; see read_document().

    Raises InvalidTensor if the body is shorter or the JSON is invalid or has more than MAX_LISTS
    lists and objects, and the errors of read_document().
    """
    if header_length is not None and not 0 <= header_length <= len(body):
        raise InvalidTensor(
            f"{BINARY_HEADER} says {header_length} bytes of JSON, the body has {len(body)}"
        )
    split = len(body) if header_length is None else header_length
    text = body[:split]
    lists = text.count(b"[") + text.count(b"{")  # also counts brackets in strings, which are rare
    if lists > MAX_LISTS:
        raise InvalidTensor(
            f"the JSON has {lists} lists and objects, the limit is {MAX_LISTS}; send such "
            f"tensors as one flat list, or raw with {BINARY_HEADER}"
        )
    try:
        document = parsed(text)
    except ValueError as error:
        raise InvalidTensor(f"the request is not valid JSON: {error}") from None
    return read_document(
        tensors.as_object(document, "the request"),
        memoryview(body)[split:],
        expected=expected,
        settings=settings,
    )


def written_size(outputs: Tensors, form: ReplyForm) -> int:
    """Estimate the work of write_reply() in bytes: JSON, and values sorted for classification."""
    values = sum(
        outputs[name].size
        for name in form.outputs
        if name not in form.binary or name in form.classes
    )
    strings: list[bytes] = [
        item for name in form.base64 for item in outputs[name].reshape(-1).tolist()
    ]
    return NUMBER_BYTES * values + sum(map(len, strings))


def write_reply(
    outputs: Tensors, form: ReplyForm, *, model: str, version: int
) -> tuple[bytes, int | None]:
    """Write the reply's body; also return the length of its JSON, or None if all of it is JSON."""
    listed: list[bytes] = []
    raw: list[bytes | memoryview] = []
    for name in form.outputs:
        array = reply_tensor(name, outputs, form)
        entry: dict[str, Any] = {"name": name, "datatype": NAMES[array.dtype.name]}
        entry["shape"] = array.shape
        if name in form.binary:
            raw.append(raw_bytes(array))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
            listed.append(orjson.dumps(entry))
            continue
        if name in form.base64:
            entry["parameters"] = {"content_type": BASE64}
            items: list[bytes] = array.reshape(-1).tolist()
            values = [b'"%b"' % b"".join(base64_parts(item)) for item in items]
        else:
            values = _values(array.reshape(-1))
        listed.append(b'%b,"data":[%b]}' % (_open(entry), b",".join(values)))
    document: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if form.id is not None:
        document["id"] = form.id
    if form.ignored:
        document["parameters"] = {IGNORED: form.ignored}
    header = b'%b,"outputs":[%b]}' % (_open(document), b",".join(listed))
    return b"".join([header, *raw]), len(header) if raw else None


def write_request(inputs: Tensors) -> tuple[bytes, int]:
    """Write a request's body with raw tensors; also return the length of its JSON in bytes."""
    raw = [raw_bytes(array) for array in inputs.values()]
    listed: list[dict[str, Any]] = [
        {
            "name": name,
            "datatype": NAMES[array.dtype.name],
            "shape": array.shape,
            "parameters": {"binary_data_size": len(octets)},
        }
        for (name, array), octets in zip(inputs.items(), raw, strict=True)
    ]
    header = orjson.dumps({"inputs": listed})
    return b"".join([header, *raw]), len(header)


def reply_tensor(name: str, outputs: Tensors, form: ReplyForm) -> Array:
    """Return an output, reduced to its largest values if the client requested classification."""
    if name not in form.classes:
        return outputs[name]
    count = form.classes[name]
    return tensors.classified(outputs[name], count, form.labels, batched=form.batched)


def raw_bytes(array: Array) -> bytes | memoryview:
    """Encode an array, little-endian and row-major. Contiguous numbers are not copied."""
    if array.dtype == np.object_:
        return tensors.write_strings(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _open(document: dict[str, Any]) -> bytes:
    """Write a JSON object without its closing bracket."""
    return orjson.dumps(document)[:-1]


def _values(flat: Array) -> list[bytes]:
    """Write the numbers or strings as parts of a JSON list, without its brackets."""
    if flat.dtype == np.object_:
        return [orjson.dumps([item.decode() for item in flat.tolist()])[1:-1]]
    if flat.dtype == np.float16:
        flat = flat.astype(np.float32)  # lossless; orjson cannot write float16
    return [
        orjson.dumps(flat[at : at + PART_NUMBERS], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for at in range(0, len(flat), PART_NUMBERS)
    ]

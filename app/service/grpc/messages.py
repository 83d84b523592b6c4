"""Messages of the protocol, and their translation to and from the forms of app.service.api.v2.

Messages are built from the descriptors beside this module when a server opens. They have their own
descriptor pool, because a client library in the same process may register messages with the same
names in the default pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from app.contracts.errors import InvalidParameter, InvalidTensor
from app.engine.dataplane import TensorRequest
from app.service.api.services import Services, beside_the_loop
from app.service.api.v2.bodies import place_timeout, raw_bytes, reply_tensor, written_size
from app.service.api.v2.documents import IGNORED, Expected, read_document
from app.service.api.v2.infer import Inferred, check_size, infer_tensors
from app.service.api.v2.tensors import NAMES, NO_SHARED_MEMORY
from app.service.grpc.wire import divide, joined, together
from app.settings.server import Settings

SERVICE = "inference.GRPCInferenceService"
DESCRIPTORS = "open_inference.binpb"


def descriptor_set() -> bytes:
    """Return the output of the protocol buffer compiler for open_inference.proto."""
    return files("app.service.grpc").joinpath(DESCRIPTORS).read_bytes()


class Messages:
    """The classes of all messages by their short names, like `messages["ModelInferRequest"]`."""

    def __init__(self) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
            self.pool.Add(file)
        self._classes: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        found = self._classes.get(name)
        if found is None:
            descriptor = self.pool.FindMessageTypeByName(f"inference.{name}")
            found = self._classes[name] = message_factory.GetMessageClass(descriptor)
        return found


CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field that holds a datatype's values if they are not raw; FP16 has none."""

FINAL_WANTED = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
"""Marks the last answer to a request of a stream. Here each request has exactly one answer."""


async def infer_message(
    services: Services, messages: Messages, message: bytes, *, within: float | None
) -> tuple[bytes, Inferred]:
    """Run an inference message. Returns the reply's message and its outputs.

    `within` is the time in seconds that the client waits. Raises InvalidTensor, InvalidParameter
    and the errors of infer_tensors().
    """
    settings = services.settings
    head, tensors = divide(message, max_head=settings.infer_json_max_bytes)
    try:
        request = messages["ModelInferRequest"].FromString(head)
    except DecodeError:
        raise InvalidTensor("the message is not a ModelInferRequest") from None
    check_size(services, request.model_name, len(message))
    if final := FINAL_WANTED in request.parameters:
        del request.parameters[FINAL_WANTED]
    parse = partial(_parse, request, tensors, settings=settings, within=within)
    found = await infer_tensors(
        services,
        request.model_name,
        read_version(request.model_version),
        parse,
        document_bytes=len(head),
        body_bytes=len(message),
        place_timeout=place_timeout(
            len(message), names_group="predictor" in request.parameters, settings=settings
        ),
    )
    write = partial(_reply, messages, found, final=final)
    size = written_size(found.outputs, found.form)
    return await beside_the_loop(services, write, size=size), found


def _reply(messages: Messages, found: Inferred, *, final: bool) -> bytes:
    reply = messages["ModelInferResponse"](
        model_name=found.model, model_version=str(found.version), id=found.form.id or ""
    )
    if final:
        reply.parameters[FINAL].bool_param = True
    if found.form.ignored:
        reply.parameters[IGNORED].string_param = found.form.ignored
    raw = []
    for name in found.form.outputs:
        array = reply_tensor(name, found.outputs, found.form)
        reply.outputs.add(name=name, datatype=NAMES[array.dtype.name], shape=array.shape)
        raw.append(raw_bytes(array))
    return joined(reply.SerializeToString(), raw)


def read_version(text: str) -> int | None:
    """Read a version number, None for an empty text. Raises InvalidParameter."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InvalidParameter("the version of a model is a whole number")
    return int(text)


def _parse(
    request: Any,
    tensors: list[memoryview],
    *,
    expected: Expected,
    settings: Settings,
    within: float | None,
) -> TensorRequest:
    return read_document(
        _document(request, tensors),
        together(tensors),
        expected=expected,
        settings=settings,
        binary=True,
        within=within,
    )


def _document(request: Any, tensors: list[memoryview]) -> dict[str, Any]:
    """Convert the request to the JSON document of the HTTP API, with raw tensors after it."""
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": read_parameters(tensor.parameters),
        }
        for tensor in request.inputs
    ]
    for entry in inputs:
        if "shared_memory_region" in entry["parameters"]:
            raise InvalidTensor(f"{NO_SHARED_MEMORY}, send tensors in the request")
    if tensors and len(tensors) != len(inputs):
        raise InvalidTensor(
            f"there are {len(tensors)} raw_input_contents for {len(inputs)} inputs",
            limit=len(inputs),
            received=len(tensors),
        )
    for number, (entry, tensor) in enumerate(zip(inputs, request.inputs, strict=True)):
        if tensors:
            entry["parameters"]["binary_data_size"] = len(tensors[number])
        if tensor.HasField("contents"):
            entry["data"] = _data(tensor)
        elif not tensors:
            raise InvalidTensor(f"inputs[{number}] has neither contents nor raw_input_contents")
    return {
        "id": request.id or None,
        "parameters": read_parameters(request.parameters),
        "inputs": inputs,
        "outputs": [
            {"name": output.name, "parameters": read_parameters(output.parameters)}
            for output in request.outputs
        ],
    }


def _data(tensor: Any) -> list[Any]:
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidTensor(
            f"only {', '.join(CONTENTS)} can be sent as contents; others as raw_input_contents"
        )
    return list(getattr(tensor.contents, field))


def read_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read a message's parameters. Raises InvalidTensor for a parameter without a value."""
    parameters = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidTensor("a parameter has no value")
        parameters[name] = getattr(parameter, kind)
    return parameters

"""The protocol's messages, translated to and from the requests and replies of `service.api.v2`.

The message classes are built from the descriptors next to this module when a server is created.
They have their own descriptor pool, because a client library in the same process may register
messages with the same names in the default pool.

The protocol buffer parser would block the event loop while it copies each raw tensor. It would also
allocate a hundred bytes or more for an empty part, such as a parameter or a string, which takes two
bytes in the message. Before it parses a message, this module therefore separates the raw tensors,
and limits the number of parts and the size of the rest. It also appends raw tensors to a reply
without protobuf.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from paddlepool.contracts.errors import FileTooLarge, InvalidParameter, InvalidTensor
from paddlepool.engine.dataplane import TensorRequest
from paddlepool.service.api.routes import whole_number
from paddlepool.service.api.services import Services, run_off_loop
from paddlepool.service.api.v2 import documents
from paddlepool.service.api.v2.documents import IGNORED, Expected
from paddlepool.service.api.v2.infer import Inferred, check_size, infer_tensors
from paddlepool.service.api.v2.tensors import NAMES, NO_SHARED_MEMORY

SERVICE = "inference.GRPCInferenceService"
DESCRIPTORS = Path(__file__).with_name("open_inference.binpb")
"""The output of the protocol buffer compiler for open_inference.proto."""


class Messages:
    """The protocol's message classes by their short names, like `messages["ModelInferRequest"]`."""

    def __init__(self) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
            self.pool.Add(file)

    def __getitem__(self, name: str) -> Any:
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"inference.{name}"))


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
"""The reply parameter that marks the last reply to a request, if the request has the parameter
FINAL_WANTED. Here each request has exactly one reply."""


async def infer_message(
    services: Services, messages: Messages, message: bytes, *, within: float | None
) -> tuple[bytes, Inferred]:
    """Run the request in `message`. Returns the reply's message, and the Inferred it was made from.

    `within` is the time in seconds that the client waits; None if it sets no limit. Raises
    InvalidTensor, InvalidParameter, FileTooLarge and the errors of infer_tensors().
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

    def parse(expected: Expected) -> TensorRequest:
        return documents.read_document(
            _document(request, tensors),
            together(tensors),
            expected=expected,
            settings=settings,
            binary=True,
            within=within,
        )

    result = await infer_tensors(
        services,
        request.model_name,
        read_version(request.model_version),
        parse,
        document_bytes=len(head),
        body_bytes=len(message),
        names_group=any(name in request.parameters for name in documents.GROUP_PARAMETERS),
    )
    write = partial(_reply, messages, result, final=final)
    size = documents.written_size(result.outputs, result.form)
    return await run_off_loop(services, write, size=size), result


def id_of(messages: Messages, message: bytes) -> str:
    """Return the id of a request; an empty text if it has none, or cannot be read."""
    try:
        head, _ = divide(message, max_head=len(message))
        return str(messages["ModelInferRequest"].FromString(head).id)
    except (InvalidTensor, FileTooLarge, DecodeError):
        return ""


def _reply(messages: Messages, result: Inferred, *, final: bool) -> bytes:
    reply = messages["ModelInferResponse"](
        model_name=result.model, model_version=str(result.version), id=result.form.id or ""
    )
    if final:
        reply.parameters[FINAL].bool_param = True
    if result.form.ignored:
        reply.parameters[IGNORED].string_param = result.form.ignored
    raw = []
    for name in result.form.outputs:
        array = documents.reply_tensor(name, result.outputs, result.form)
        reply.outputs.add(name=name, datatype=NAMES[array.dtype.name], shape=array.shape)
        raw.append(documents.raw_bytes(array))
    return joined(reply.SerializeToString(), raw)


def read_version(text: str) -> int | None:
    """Read a version number, None for an empty text. Raises InvalidParameter."""
    if not text:
        return None
    if (number := whole_number(text)) is None:
        raise InvalidParameter("the version of a model must be a whole number")
    return number


def _document(request: Any, tensors: list[memoryview]) -> dict[str, Any]:
    """Convert the request to the HTTP API's document, which declares `tensors` as raw.

    Raises InvalidTensor if the number of `tensors` is neither 0 nor that of the inputs, if an input
    has no data, has contents of a datatype that is not in CONTENTS or names shared memory, and as
    read_parameters() does.
    """
    if tensors and len(tensors) != len(request.inputs):
        raise InvalidTensor(
            f"there are {len(tensors)} raw_input_contents for {len(request.inputs)} inputs"
        )
    inputs = []
    for number, tensor in enumerate(request.inputs):
        parameters = read_parameters(tensor.parameters)
        if "shared_memory_region" in parameters:
            raise InvalidTensor(f"{NO_SHARED_MEMORY}, send tensors in the request")
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype}
        entry |= {"shape": list(tensor.shape), "parameters": parameters}
        if tensors:
            parameters["binary_data_size"] = len(tensors[number])
        if tensor.HasField("contents"):
            entry["data"] = _data(tensor)
        elif not tensors:
            raise InvalidTensor(f"inputs[{number}] has neither contents nor raw_input_contents")
        inputs.append(entry)
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


def read_parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Read a message's parameters. Raises InvalidTensor for a parameter without a value."""
    parameters = {}
    for name, parameter in fields.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidTensor("a parameter has no value")
        parameters[name] = getattr(parameter, kind)
    return parameters


RAW_INPUT = 7 << 3 | 2
RAW_OUTPUT = 6 << 3 | 2
"""Tags (field number and wire type) of raw tensors in a request and in a reply."""

MAX_PARTS = 4_096
"""Maximum parts of one message, including nested ones: inputs, parameters, strings, raw tensors."""

Parts = Mapping[int, "Parts"]
"""Maps the number of each field that contains a nested message to the Parts of that message."""

PARAMETER: Parts = {2: {}}
INPUT: Parts = {4: PARAMETER, 5: {}}
OUTPUT: Parts = {2: PARAMETER}
REQUEST: Parts = {4: PARAMETER, 5: INPUT, 6: OUTPUT}

MAX_VARINT = 10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def divide(message: bytes, *, max_head: int) -> tuple[bytes, list[memoryview]]:
    """Split an infer request into the message without its raw tensors, and the raw tensors.

    The tensors are views, not copies. Raises InvalidTensor if the message is malformed or has more
    than MAX_PARTS parts, and FileTooLarge if it has more than `max_head` bytes without the tensors.
    """
    view = memoryview(message)
    head: list[memoryview] = []
    tensors: list[memoryview] = []
    for tag, begin, at, end in _parts(message, 0, len(message), REQUEST, count(1)):
        if tag == RAW_INPUT:
            tensors.append(view[at:end])
        else:
            head.append(view[begin:end])
    size = sum(map(len, head))
    if size > max_head:
        raise FileTooLarge(
            f"The message has {size} bytes besides its raw tensors, the limit is {max_head}; "
            "larger tensors can be sent as raw_input_contents."
        )
    return b"".join(head), tensors


def _parts(
    message: bytes, at: int, end: int, inside: Parts, numbers: Iterator[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag of each field, and the offsets of its start, of its content and of its end.

    The fields are those of `message` from `at` to `end`. Those of the nested messages in `inside`
    are counted with `numbers`, but not yielded. Raises InvalidTensor as divide() does.
    """
    while at < end:
        begin = at
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == BYTES:
            length, at = _varint(message, at)
            stop = at + length
        elif kind == VARINT:
            _, stop = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            stop = at + (8 if kind == FIXED64 else 4)
        else:
            raise _malformed()
        if stop > end:
            raise _malformed()
        if next(numbers) > MAX_PARTS:
            raise InvalidTensor(
                f"the message has more than {MAX_PARTS} parts; send numbers packed, and large "
                "tensors as raw_input_contents"
            )
        yield tag, begin, at, stop
        if kind == BYTES and (parts := inside.get(tag >> 3)) is not None:
            for _ in _parts(message, at, stop, parts, numbers):
                pass
        at = stop


def joined(head: bytes, tensors: Iterable[bytes | memoryview]) -> bytes:
    """Append raw tensors to a reply's message; protobuf accepts its fields in any order."""
    parts: list[bytes | memoryview] = [head]
    for tensor in tensors:
        parts += (bytes((RAW_OUTPUT,)), _encoded(len(tensor)), tensor)
    return b"".join(parts)


def together(tensors: Sequence[memoryview]) -> memoryview:
    """Concatenate the bytes of tensors; those of a single one are not copied."""
    return tensors[0] if len(tensors) == 1 else memoryview(b"".join(tensors))


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Read a varint. Returns its value and the offset of its end. Raises InvalidTensor."""
    value = 0
    for place, byte in enumerate(message[at : at + MAX_VARINT]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise _malformed()


def _encoded(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _malformed() -> InvalidTensor:
    return InvalidTensor("the message is malformed")

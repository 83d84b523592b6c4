"""The protocol's descriptors, and messages as bytes."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlepool.contracts.errors import FileTooLarge, InvalidTensor
from paddlepool.service.api.errors import HTTP_CODES, STATUS

pytest.importorskip("grpc")

from paddlepool.service.grpc.calls import CODES
from paddlepool.service.grpc.messages import (
    DESCRIPTORS,
    MAX_PARTS,
    SERVICE,
    Messages,
    divide,
    joined,
    together,
)
from tests.ran import ran

MESSAGES = Messages()
HEAD = 1_000


def test_the_descriptors_are_those_of_the_proto(tmp_path: Path) -> None:
    """The proto's first lines have the command that makes them anew."""
    pytest.importorskip("grpc_tools")
    out = tmp_path / "made.binpb"
    made = ["-Iapp/paddlepool/service/grpc", f"-o{out}", "open_inference.proto"]
    ran([sys.executable, "-m", "grpc_tools.protoc", *made])
    assert out.read_bytes() == DESCRIPTORS.read_bytes()


def test_the_numbers_are_those_that_clients_use() -> None:
    """Each field of ours has its name, number and kind in Triton's client."""
    triton = pytest.importorskip("tritonclient.grpc").service_pb2.DESCRIPTOR.pool
    service = MESSAGES.pool.FindServiceByName(SERVICE)
    known = triton.FindServiceByName(SERVICE)
    seen = set()

    def compare(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        own, other = (pool.FindMessageTypeByName(name) for pool in (MESSAGES.pool, triton))
        for field in own.fields:
            same = other.fields_by_name[field.name]
            expected = (same.number, same.type, same.is_repeated)
            assert expected == (field.number, field.type, field.is_repeated), field.full_name
            if field.message_type is not None:
                compare(field.message_type.full_name)

    for method in service.methods:
        same = known.methods_by_name[method.name]
        for kind in ("input_type", "output_type"):
            assert getattr(same, kind).full_name == getattr(method, kind).full_name
            compare(getattr(method, kind).full_name)
    assert len(seen) > 30


def test_every_error_has_a_code() -> None:
    assert set(STATUS.values()) <= set(CODES)
    assert set(HTTP_CODES) - set(CODES) == {405, 431, 505}  # of HTTP alone


tensors = st.lists(st.binary(max_size=300), max_size=4)


@pytest.mark.slow
@given(name=st.text(max_size=20), raw=tensors)
def test_a_message_is_divided_as_it_was_joined(name: str, raw: list[bytes]) -> None:
    request = MESSAGES["ModelInferRequest"](model_name=name, raw_input_contents=raw)
    head, parts = divide(request.SerializeToString(), max_head=HEAD)
    assert [bytes(part) for part in parts] == raw
    assert MESSAGES["ModelInferRequest"].FromString(head).model_name == name
    assert bytes(together(parts)) == b"".join(raw)
    reply = MESSAGES["ModelInferResponse"].FromString(joined(head[:0], raw))
    assert list(reply.raw_output_contents) == raw


@given(st.binary(max_size=60))
def test_any_bytes_are_divided_or_refused(message: bytes) -> None:
    try:
        head, parts = divide(message, max_head=HEAD)
    except InvalidTensor:
        return
    assert len(head) + sum(map(len, parts)) <= len(message)


@pytest.mark.parametrize("message", [b"\x3a\x05abc", b"\x3a\x80", b"\x0d\x00", b"\x3b"])
def test_a_message_that_ends_inside_a_part_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidTensor, match="malformed"):
        divide(message, max_head=HEAD)


def test_what_would_take_more_memory_than_it_has_is_refused() -> None:
    """Empty parts, which a parser makes an object of each, and numbers that are not raw."""
    with pytest.raises(InvalidTensor, match=str(MAX_PARTS)):
        divide(b"\x2a\x00" * (MAX_PARTS + 1), max_head=10**6)
    request = MESSAGES["ModelInferRequest"]()
    request.inputs.add(name="x").contents.fp32_contents.extend([0.0] * 100_000)
    divide(request.SerializeToString(), max_head=10**6)  # packed, they are one part
    with pytest.raises(FileTooLarge, match="raw_input_contents"):
        divide(request.SerializeToString(), max_head=HEAD)


@pytest.mark.parametrize("within", ["strings", "parameters of an input", "keys of a parameter"])
def test_parts_within_parts_are_counted(within: str) -> None:
    """Its own parser would make objects of all of them, and let nobody else run meanwhile."""
    request = MESSAGES["ModelInferRequest"]()
    tensor = request.inputs.add(name="x")
    if within == "strings":
        tensor.contents.bytes_contents.extend([b""] * MAX_PARTS)
    elif within == "parameters of an input":
        for number in range(MAX_PARTS):
            tensor.parameters[str(number)].bool_param = True
    message = request.SerializeToString()
    if within == "keys of a parameter":
        entry = b"\x0a\x00" * MAX_PARTS
        message += b"\x22" + bytes((len(entry) & 127 | 128, len(entry) >> 7)) + entry
    with pytest.raises(InvalidTensor, match=str(MAX_PARTS)):
        divide(message, max_head=10**6)

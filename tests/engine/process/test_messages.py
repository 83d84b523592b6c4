"""Messages to and from child processes."""

import json
import math
import os
import socket

import pytest

from paddlepool.engine.process.child import encoded
from paddlepool.engine.process.replies import Message, parse_message
from paddlepool.engine.process.worker import HEADER_BYTES, receive


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"meta": {"rows": 2}, "arrays": [["x", "<f4", [1, 3], 0]], "slot": 1, "seconds": 0.25},
        {"directory": b"/models/\xff".decode("utf-8", "surrogateescape")},
        {"label": "悲伤", "limit": None, "large": 2**64},
    ],
)
def test_a_message_arrives_as_it_was_sent(message: dict[str, object]) -> None:
    """Even a path that is not UTF-8."""
    assert json.loads(encoded(message)) == message


def test_numbers_that_json_does_not_have_can_be_read() -> None:
    """A child that writes them is compromised, and its reply is judged by its other values."""
    reply = {"meta": {"limit": math.nan}, "arrays": [], "seconds": 0.5}
    message = parse_message(json.dumps(reply).encode())
    assert isinstance(message, Message)
    assert math.isnan(message.meta["limit"])


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_message(text)


def test_a_message_brings_its_descriptors_and_leaves_the_next_one_whole() -> None:
    """All messages are received into the same memory."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    header = bytearray(HEADER_BYTES)
    read, write = os.pipe()
    with ours, theirs, os.fdopen(read), os.fdopen(write, "wb") as sent:
        socket.send_fds(ours, [b"longer"], [read, write])
        ours.send(b"next")
        size, descriptors = receive(theirs, header)
        assert bytes(header[:size]) == b"longer"
        for descriptor, original in zip(descriptors, (read, sent.fileno()), strict=True):
            assert os.fstat(descriptor).st_ino == os.fstat(original).st_ino
            os.close(descriptor)
        size, descriptors = receive(theirs, header)
        assert (bytes(header[:size]), descriptors) == (b"next", [])
        ours.close()
        assert receive(theirs, header) == (0, [])

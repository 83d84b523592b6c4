"""What uvicorn writes of a reply, and when it leaves."""

from typing import Any

from app.service.server.ending import JOINED_BYTES, ReplyTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def is_closing(self) -> bool:
        return False


def test_a_large_body_is_not_copied_behind_its_headers() -> None:
    wire: Any = Wire()
    reply, body = ReplyTransport(wire, lambda: None), bytes(JOINED_BYTES + 1)
    reply.write(HEAD)
    reply.write(body)
    assert wire.sent == [HEAD, body]
    assert wire.sent[1] is body


def test_headers_leave_with_the_first_of_the_body() -> None:
    """A body may look like headers itself; what no body follows is flushed."""
    wire: Any = Wire()
    reply = ReplyTransport(wire, lambda: wire.write(b"closed"))
    reply.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    reply.write(HEAD)
    assert wire.sent == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    reply.write(b"one")
    reply.write(HEAD)
    assert wire.sent[1:] == [HEAD + b"one", HEAD]
    alone = ReplyTransport(wire, lambda: wire.write(b"closed"))
    alone.write(HEAD)
    alone.close()
    assert wire.sent[3:] == [HEAD, b"closed"]

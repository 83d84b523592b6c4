"""In how many writes a reply leaves."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.service.server.ending import JOINED_BYTES, WholeReply


class Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)


@pytest.mark.parametrize("size", [0, JOINED_BYTES, JOINED_BYTES + 1])
def test_a_small_reply_is_one_write_and_a_large_body_is_not_copied(size: int) -> None:
    wire, body = Wire(), bytes(size)

    async def reply() -> None:
        cycle: Any = SimpleNamespace(
            scope={"method": "GET"},
            flow=SimpleNamespace(write_paused=False),
            disconnected=False,
            keep_alive=True,
            default_headers=[(b"date", b"today")],
            transport=wire,
            message_event=asyncio.Event(),
            on_response=lambda: None,
        )
        send = WholeReply(cycle).send
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    asyncio.run(reply())
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: %d\r\n\r\n" % size
    assert b"".join(wire.sent) == head + body
    assert len(wire.sent) == 1 or wire.sent[1] is body
    assert (len(wire.sent) == 1) is (size <= JOINED_BYTES)

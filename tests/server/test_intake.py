"""One connection's read leaves the loop to others, and what was read is not lost."""

from __future__ import annotations

import asyncio
import itertools

from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.server.connection_limits import HEAD_SLICE
from app.server.incoming import CHUNKED_SLICE
from app.server.intake import PIPELINED, TURN_SECONDS, Intake
from tests.server.fakes import Line, Timers, opened

GET = b"GET /%d HTTP/1.1\r\nHost:\r\n\r\n"
POST = b"POST /body HTTP/1.1\r\nHost: localhost\r\n"


async def told(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the path and the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"<%b %d>" % (scope["path"].encode(), size)
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


async def replies(*parts: bytes, end: bytes) -> tuple[bytes, int]:
    """What is answered until `end`, and the most requests that waited behind one another."""
    state, line = ServerState(), Line()
    protocol = opened(told, line, state)
    waiting = 0
    for part in parts:
        protocol.data_received(part)
        waiting = max(waiting, len(protocol.pipeline))
    async with asyncio.timeout(20):
        while not line.written.endswith(end):
            await asyncio.sleep(0)
            waiting = max(waiting, len(protocol.pipeline))
    assert not line.paused
    assert not protocol.flow.read_paused
    line.closing = True
    protocol.connection_lost(None)
    return bytes(line.written), waiting


def test_pipelined_requests_are_parsed_when_it_is_their_turn() -> None:
    """All of a read cost time and memory once, before anyone was answered."""
    count = 2_000
    read = b"".join(GET % number for number in range(count))
    received, waiting = asyncio.run(replies(read, end=b"</%d 0>" % (count - 1)))
    assert waiting < PIPELINED + HEAD_SLICE / len(GET)
    answers = [received.index(b"</%d 0>" % number) for number in range(count)]
    assert answers == sorted(answers)


def test_bodies_and_requests_behind_them_come_whole() -> None:
    """Of both framings, in one read and in pieces that end anywhere."""
    size = 5 * CHUNKED_SLICE
    known = POST + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
    chunks = b"%x\r\n%b\r\n" % (1_000, bytes(1_000)) * 100 + b"0\r\n\r\n"
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    last = GET % 9
    stream = (known + chunked + GET % 7) * 3 + last
    cuts = [0, 1, 50, 3_000, 90_000, 170_001, 250_000, len(stream)]
    pieces = [stream[start:stop] for start, stop in itertools.pairwise(cuts)]
    for parts in ([stream], pieces):
        received, _ = asyncio.run(replies(*parts, end=b"</9 0>"))
        bodies = b"</body %d>" % size, b"</body 100000>", b"</7 0>"
        assert [received.count(body) for body in bodies] == [3, 3, 3]


class Slices:
    """Stands for a connection: takes ten bytes at a time, each in `seconds` of the clock."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.parsed = b""
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    def slice_bytes(self) -> int:
        return 10

    def parse(self, data: bytes | memoryview) -> None:
        self.parsed += data
        self.now += self._seconds

    def deliver(self) -> None: ...


def taken(slices: Slices, pipeline: list[int]) -> tuple[Intake, Line, Timers]:
    line, timers = Line(), Timers()
    intake = Intake(line, timers, parsing=slices, pipeline=pipeline, clock=slices.clock)  # type: ignore[arg-type]  # what it uses of a loop
    return intake, line, timers


def test_a_turn_ends_after_its_time() -> None:
    """The transport is not read while anything of it waits."""
    slices = Slices(TURN_SECONDS / 2)
    intake, line, timers = taken(slices, [])
    intake.received(b"x" * 35)
    assert (len(slices.parsed), line.paused, intake.holds) == (20, True, True)
    [turn] = timers.soon
    turn()
    assert (len(slices.parsed), line.paused, intake.holds) == (35, False, False)


def test_nothing_is_parsed_while_enough_requests_wait() -> None:
    """Whoever asks for more gets it when there are fewer."""
    pipeline, slices = [0] * PIPELINED, Slices(0)
    intake, line, timers = taken(slices, pipeline)
    intake.pause_reading()
    intake.received(b"x" * 15)
    intake.resume_reading()
    assert (slices.parsed, line.paused, timers.soon) == (b"", True, [])
    pipeline.pop()
    intake.resume_reading()
    [turn] = timers.soon
    turn()
    assert (slices.parsed, line.paused) == (b"x" * 15, False)


def test_a_lost_connection_parses_no_more() -> None:
    """Its handlers may still ask for more of a body."""
    slices = Slices(1)
    intake, _, _ = taken(slices, [])
    intake.received(b"x" * 25)
    intake.close()
    assert not intake.holds
    intake.resume_reading()
    assert slices.parsed == b"x" * 10

"""Connections to the server's protocol and application in this process, without a socket."""

import asyncio
import functools
import re
from typing import Any

import uvicorn
from fastapi import APIRouter, Request
from uvicorn.server import ServerState

from paddlepool.service.api.uploads import read_upload
from paddlepool.service.server.connection_limits import protocol_class
from paddlepool.settings.server import Settings
from tests.service.api.fakes import FakeRegistry, make_app

PIECE_BYTES = 7
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Transport(asyncio.Transport):
    """Keeps what is written, and how it stands."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.writes: list[bytes] = []
        self.closing = self.ended = self.paused = False

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        self.writes.append(data)

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


LIMITS = Settings(
    header_timeout_seconds=30, header_max_bytes=4096, max_connections=9, replica="replica1"
)
REPLY_BYTES = 2**20


class Entry:
    """One application; `send` opens a connection, sends the pieces and leaves."""

    def __init__(self) -> None:
        router = APIRouter()

        async def upload(request: Request) -> dict[str, int]:
            body, _, _ = await read_upload(request, known=("size",), max_fields=4, second=("bg",))
            return {"bytes": len(body)}

        router.add_api_route("/upload", upload, methods=["POST"], max_body_size=4096)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._failed)
        self._failures: list[dict[str, Any]] = []
        self._protocol = protocol_class(LIMITS, reply_bytes=REPLY_BYTES)
        self._config = uvicorn.Config(
            make_app(router, registry=FakeRegistry(models=[])),
            http=self._protocol,
            ws="none",
            log_config=None,
            log_level="critical",
        )
        self._config.load()
        self._state = ServerState()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failures.append(context)

    def send(self, *pieces: bytes) -> list[int]:
        """The statuses of the replies. Raises what was raised where nobody would have seen it."""
        return self._loop.run_until_complete(self._send(pieces))

    async def _send(self, pieces: tuple[bytes, ...]) -> list[int]:
        protocol = self._protocol(
            config=self._config, server_state=self._state, app_state={}, _loop=self._loop
        )
        transport = Transport()
        protocol.connection_made(transport)
        for piece in pieces:
            protocol.data_received(piece)
            await asyncio.sleep(0)
        tasks = set(self._state.tasks)
        if tasks:  # what waits for more of a body is told below that there is none
            await asyncio.wait(tasks, timeout=0.002)
        transport.closing = True
        protocol.connection_lost(None)
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=5)
        assert not self._state.tasks, "a request outlives its connection"
        assert not self._failures, self._failures
        return [int(status) for status in STATUS.findall(transport.written)]


@functools.cache
def entry() -> Entry:
    return Entry()


def http(data: bytes) -> None:
    """Whole and in pieces: replies that begin as HTTP has it, and none is a fault of ours."""
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    for statuses in (entry().send(data), entry().send(*pieces)):
        assert 500 not in statuses

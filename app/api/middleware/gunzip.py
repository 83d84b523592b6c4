"""Unpacks compressed request bodies, piece by piece."""

from __future__ import annotations

import asyncio
import zlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.contracts.errors import UnsupportedEncoding

PIECE = 1 << 18
"""Most bytes unpacked at a time: a millisecond of the event loop."""

GZIP_ONLY = 16 + zlib.MAX_WBITS


class Gunzip:
    """Unpacks request bodies with `Content-Encoding: gzip` as they are read.

    The layers inside see the unpacked body alone and hold it to their limits, so that one that
    unpacks to too much is refused at the first piece beyond. Reading raises UnsupportedEncoding for
    a body that is not one complete member of gzip.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            codings = [value for name, value in scope["headers"] if name == b"content-encoding"]
            if [coding.strip().lower() for coding in codings] == [b"gzip"]:
                replaced = (b"content-encoding", b"content-length")
                headers = [each for each in scope["headers"] if each[0] not in replaced]
                scope, receive = {**scope, "headers": headers}, _Unpacked(receive).receive
        await self._app(scope, receive, send)


class _Unpacked:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._stream = zlib.decompressobj(GZIP_ONLY)
        self._packed = b""
        self._more = True  # messages of the server
        self._piece = b""

    async def receive(self) -> Message:
        # A full piece may leave output behind though all input is consumed.
        if self._packed or len(self._piece) == PIECE:
            await asyncio.sleep(0)  # other requests have their turn between pieces
        else:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._packed, self._more = message.get("body", b""), message.get("more_body", False)
        self._unpack()
        more = self._more or bool(self._packed) or len(self._piece) == PIECE
        if not more and not self._stream.eof:
            raise UnsupportedEncoding("The body ends before its gzip stream does.")
        return {"type": "http.request", "body": self._piece, "more_body": more}

    def _unpack(self) -> None:
        try:
            self._piece = self._stream.decompress(self._packed, PIECE)
        except zlib.error as error:
            raise UnsupportedEncoding("The body is not what gzip makes.") from error
        self._packed = self._stream.unconsumed_tail
        if self._stream.unused_data:  # were members accepted, many empty ones would cost much time
            raise UnsupportedEncoding("The body goes on after the end of its gzip stream.")

"""Gzip for requests and replies. Requests are decompressed piece by piece."""

import asyncio
import re
import zlib
from collections.abc import Callable
from functools import partial

from starlette.datastructures import Headers
from starlette.middleware.gzip import (
    DEFAULT_EXCLUDED_CONTENT_TYPES,
    GZipResponder,
    IdentityResponder,
)
from starlette.types import Message, Receive, Scope, Send

from paddlepool.contracts.errors import UnsupportedEncoding

PIECE = 1 << 18
"""Maximum bytes decompressed at a time. They occupy the event loop for a millisecond."""

GZIP_ONLY = 16 + zlib.MAX_WBITS

ACCEPTS_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
"""Matches an Accept-Encoding that accepts gzip; `q=0` rejects it."""

MIN_COMPRESSED_BYTES = 1024
"""A shorter reply fits in one packet even if it is not compressed."""

UNCOMPRESSED_TYPES = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream")
"""Content types that are not compressed, such as pictures and raw tensors."""


def unpacked(scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
    """Decompress a gzip body as it is read. Reading raises UnsupportedEncoding for invalid data."""
    codings = [value for name, value in scope["headers"] if name == b"content-encoding"]
    if [coding.strip().lower() for coding in codings] != [b"gzip"]:
        return scope, receive
    replaced = (b"content-encoding", b"content-length")
    headers = [each for each in scope["headers"] if each[0] not in replaced]
    return {**scope, "headers": headers}, _Unpacked(receive).receive


def packed(start: Message, headers: Headers, send: Send) -> Send:
    """Return the `send` for the reply that begins with `start`.

    This `send` compresses the reply if the reply is long and the request's `headers` accept gzip.
    Only long replies get Starlette's responder, which takes more time than a short reply itself.
    """
    lengths = [int(value) for name, value in start["headers"] if name == b"content-length"]
    if lengths and lengths[0] < MIN_COMPRESSED_BYTES:
        return send
    kind: Callable[..., IdentityResponder] = IdentityResponder
    if ACCEPTS_GZIP.search(headers.get("accept-encoding", "")):
        # Levels above 1 take several times longer and save 5 %.
        kind = partial(GZipResponder, compresslevel=1)
    responder = kind(_unused, MIN_COMPRESSED_BYTES, exclude_content_types=UNCOMPRESSED_TYPES)
    responder.send = send
    return responder.send_with_compression


async def _unused(scope: Scope, receive: Receive, send: Send) -> None:
    """Placeholder for the application that a responder requires; only its `send` is used."""


class _Unpacked:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._stream = zlib.decompressobj(GZIP_ONLY)
        self._packed = b""
        self._more = True  # whether the server has more messages
        self._piece = b""

    async def receive(self) -> Message:
        # After a full piece, the decompressor may hold output though all input is consumed.
        if self._packed or len(self._piece) == PIECE:
            await asyncio.sleep(0)  # let other requests run between pieces
        else:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._packed, self._more = message.get("body", b""), message.get("more_body", False)
        try:
            self._piece = self._stream.decompress(self._packed, PIECE)
        except zlib.error as error:
            raise UnsupportedEncoding("The body is not gzip data.") from error
        self._packed = self._stream.unconsumed_tail
        if self._stream.unused_data:  # many empty members would take long, so only one is accepted
            raise UnsupportedEncoding("The body continues after the end of its gzip stream.")
        more = self._more or bool(self._packed) or len(self._piece) == PIECE
        if not more and not self._stream.eof:
            raise UnsupportedEncoding("The body ends before its gzip stream ends.")
        return {"type": "http.request", "body": self._piece, "more_body": more}

"""Gzip for requests and replies. Requests are decompressed piece by piece."""

import asyncio
import re
import zlib

from starlette.datastructures import Headers
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
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
    """Return the scope and the `receive` of a request whose gzip body is decompressed when read.

    The scope loses Content-Encoding and Content-Length. Requests with another Content-Encoding, or
    with none, stay as they are. Reading raises UnsupportedEncoding if the body is not exactly one
    complete gzip stream.
    """
    codings = [value for name, value in scope["headers"] if name == b"content-encoding"]
    if [coding.strip().lower() for coding in codings] != [b"gzip"]:
        return scope, receive
    replaced = (b"content-encoding", b"content-length")
    headers = [header for header in scope["headers"] if header[0] not in replaced]
    stream, packed, piece = zlib.decompressobj(GZIP_ONLY), b"", b""
    more = True  # whether the server has more messages

    async def receive_piece() -> Message:
        nonlocal packed, piece, more
        # After a full piece, the decompressor may hold output though all input is consumed.
        if packed or len(piece) == PIECE:
            await asyncio.sleep(0)  # let other requests run between pieces
        else:
            message = await receive()
            if message["type"] != "http.request":
                return message
            packed, more = message.get("body", b""), message.get("more_body", False)
        try:
            piece = stream.decompress(packed, PIECE)
        except zlib.error as error:
            raise UnsupportedEncoding("The body is not gzip data.") from error
        packed = stream.unconsumed_tail
        if stream.unused_data:  # many empty members would take long, so only one is accepted
            raise UnsupportedEncoding("The body continues after the end of its gzip stream.")
        unfinished = more or bool(packed) or len(piece) == PIECE
        if not unfinished and not stream.eof:
            raise UnsupportedEncoding("The body ends before its gzip stream ends.")
        return {"type": "http.request", "body": piece, "more_body": unfinished}

    return {**scope, "headers": headers}, receive_piece


async def _replay(scope: Scope, _receive: Receive, send: Send) -> None:
    for message in scope["reply"]:
        await send(message)


# Levels above 1 take several times longer and save 5 %.
_GZIP = GZipMiddleware(
    _replay, MIN_COMPRESSED_BYTES, compresslevel=1, exclude_content_types=UNCOMPRESSED_TYPES
)


def is_long(start: Message) -> bool:
    """Return whether Content-Length is at least MIN_COMPRESSED_BYTES; False without that header.

    Starlette's own check takes longer.
    """
    for name, value in start["headers"]:
        if name == b"content-length":
            return int(value) >= MIN_COMPRESSED_BYTES
    return False


async def send_packed(
    start: Message, body: Message, headers: Headers, receive: Receive, send: Send
) -> None:
    """Send a reply with its whole body; compress it if the request's `headers` accept gzip.

    Replies that are short, of the UNCOMPRESSED_TYPES or encoded already stay as they are.
    """
    accepted = ACCEPTS_GZIP.search(headers.get("accept-encoding", ""))
    scope = {"type": "http", "headers": [(b"accept-encoding", b"gzip")] if accepted else []}
    await _GZIP({**scope, "reply": (start, body)}, receive, send)

"""An ASGI application that forwards requests to another server on this machine."""

import logging
from collections.abc import AsyncIterator, Iterable

import aiohttp
from starlette.types import Message, Receive, Scope, Send
from yarl import URL

from paddlepool.service.api.errors import http_fault, reply

CONNECTION_HEADERS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
     b"upgrade", b"expect")
)  # fmt: skip
"""Hop-by-hop headers, which are not forwarded."""

SET_IN_FRONT = frozenset((b"date", b"server", b"x-request-id"))
"""Reply headers that are not forwarded: Ray's HTTP server sets its own. It passes on the request's
id, so Paddlepool's server uses the same one."""

IDLE_SECONDS = 2.0
"""Time after which the relay closes an idle connection. It must be below
PADDLEPOOL_KEEP_ALIVE_SECONDS, so that no request is sent while the server closes the connection."""

log = logging.getLogger("paddlepool.relay")


class Relay:
    """Streams requests to the server on a port of this machine, and its replies back.

    Nothing is buffered, so the server's own deadlines apply. A disconnect during the body is passed
    on. If the server does not answer, the reply is 503; if it fails during its reply, this raises
    aiohttp.ClientError.
    """

    def __init__(self, port: int) -> None:
        self._origin = f"http://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def get(self, path: str, headers: Iterable[tuple[str, str]] = ()) -> tuple[int, str]:
        """Return the status and text of a reply. Raises aiohttp.ClientError if there is none."""
        async with self._session.get(self._origin + path, headers=list(headers)) as response:
            return response.status, await response.text()

    async def close(self) -> None:
        await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        target: bytes = scope["raw_path"]
        if query := scope["query_string"]:
            target += b"?" + query
        try:
            async with self._session.request(
                scope["method"],
                URL(self._origin + target.decode("ascii"), encoded=True),
                headers=_request_headers(scope),
                data=_body(receive) if _has_body(scope) else None,
                allow_redirects=False,
            ) as response:
                headers = [
                    (name.lower(), value)
                    for name, value in response.raw_headers
                    if name.lower() not in CONNECTION_HEADERS | SET_IN_FRONT
                ]
                started = True
                status = response.status
                await send({"type": "http.response.start", "status": status, "headers": headers})
                async for chunk, _ in response.content.iter_chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except aiohttp.ClientError as error:
            log.warning("the server did not answer: %r", error)
            if started:
                raise  # the reply is partly sent; only closing the connection signals the error
            # Requests have no side effects, so the client may retry.
            fault = http_fault(503, "The replica did not answer.", {"Retry-After": "1"})
            await reply(fault, scope)(scope, receive, send)


def _request_headers(scope: Scope) -> list[tuple[str, str]]:
    """Return the headers except CONNECTION_HEADERS, and the client's address as X-Forwarded-For."""
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name not in CONNECTION_HEADERS
    ]
    if scope.get("client"):
        headers.append(("x-forwarded-for", scope["client"][0]))
    return headers


def _has_body(scope: Scope) -> bool:
    names = dict(scope["headers"])
    return b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise aiohttp.ClientConnectionError("the client has left")
        yield message.get("body", b"")
        more = message.get("more_body", False)

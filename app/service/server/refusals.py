"""Error replies to requests that reach the application only in part or not at all."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.contracts.errors import Overloaded
from app.service.api.errors import fault_of, http_fault
from app.service.api.problems import MEDIA_TYPE, Fault, Refused, members, reply
from app.service.server.framing import version_unknown

REFUSED_CONNECTIONS = 16
"""Connections beyond the limit that get a 503; further ones are closed at once. OWN_DESCRIPTORS in
app.service.server.system includes their descriptors."""

UNKNOWN_VERSION = "Invalid HTTP version"
"""The parser's error text."""


def fault_of_parser(error: httptools.HttpParserError) -> Fault:
    """Return the fault for an error of the parser or of our callbacks."""
    if isinstance(error.__context__, Refused):
        return error.__context__.fault
    if str(error) == UNKNOWN_VERSION:
        return version_unknown()
    return http_fault(400, "The request is not valid HTTP/1.1.")


def headers_too_large(what: str, *, limit: int, received: int) -> Fault:
    """Build the 431 fault; `limit` and `received` are in bytes."""
    detail = f"The {what} have at least {received} bytes, the limit is {limit}."
    return replace(http_fault(431, detail), limit=limit, received=received)


def too_slow(what: str, *, limit: float) -> Fault:
    """Build the 408 fault; `limit` is in seconds."""
    detail = f"The {what} did not arrive within {limit:g} seconds."
    return replace(http_fault(408, detail), limit=limit)


def too_many_pipelined(limit: int) -> Fault:
    return _overloaded(f"More than {limit} requests wait on this connection.", limit)


async def refuse_crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application that replaces ours if too many connections are open."""
    scope["state"]["request_id"] = secrets.token_hex(8)
    fault = _overloaded("Too many connections are open.")
    await reply(fault, scope)(scope, receive, send)


def last_reply(fault: Fault, request_id: str) -> bytes:
    """Build the raw bytes of the error reply that ends a connection."""
    body = json.dumps(members(fault, request_id=request_id, instance="")).encode()
    return (
        STATUS_LINE[fault.status]
        + b"content-type: %b\r\n" % MEDIA_TYPE.encode()
        + b"content-length: %d\r\n" % len(body)
        + b"x-request-id: %b\r\nx-content-type-options: nosniff\r\n" % request_id.encode()
        + b"".join(b"%b: %b\r\n" % (k.encode(), v.encode()) for k, v in fault.headers.items())
        + (b"" if "Connection" in fault.headers else b"connection: close\r\n")
        + b"\r\n"
        + body
    )


def _overloaded(detail: str, limit: int | None = None) -> Fault:
    fault = fault_of(Overloaded(detail, limit=limit))
    return replace(fault, headers={**fault.headers, "Connection": "close"})

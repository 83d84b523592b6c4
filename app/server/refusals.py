"""What a connection answers by itself, to a request that does not get to the application whole."""

from __future__ import annotations

import json
from dataclasses import replace

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.errors import http_fault
from app.api.problems import MEDIA_TYPE, Fault, members


def headers_too_large(what: str, *, limit: int, received: int) -> Fault:
    """Both in bytes."""
    detail = f"The {what} have at least {received} bytes, the limit is {limit}."
    return replace(http_fault(431, detail), limit=limit, received=received)


def too_slow(what: str, *, limit: float) -> Fault:
    """`limit` in seconds."""
    detail = f"The {what} did not arrive within {limit:g} seconds."
    return replace(http_fault(408, detail), limit=limit)


def last_reply(fault: Fault, request_id: str) -> bytes:
    """The bytes that end a connection."""
    body = json.dumps(members(fault, request_id=request_id, instance="")).encode()
    return (
        STATUS_LINE[fault.status]
        + b"content-type: %b\r\n" % MEDIA_TYPE.encode()
        + b"content-length: %d\r\n" % len(body)
        + b"x-request-id: %b\r\nx-content-type-options: nosniff\r\n" % request_id.encode()
        + b"connection: close\r\n\r\n"
        + body
    )

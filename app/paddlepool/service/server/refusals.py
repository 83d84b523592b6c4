"""Replies that end a connection, without a route."""

import json
from dataclasses import replace

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from paddlepool.contracts.errors import Overloaded
from paddlepool.service.api.errors import MEDIA_TYPE, Fault, fault_of, members, reply
from paddlepool.service.api.middleware.exchange import request_id_of
from paddlepool.service.api.middleware.layer import REPLICA


async def refuse_crowded(replica: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Reply with 503, because too many connections are open: an ASGI application."""
    scope["state"]["request_id"] = request_id_of(None)
    fault = named(overloaded("Too many connections are open."), replica)
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


def overloaded(detail: str, limit: int | None = None) -> Fault:
    fault = fault_of(Overloaded(detail, limit=limit))
    return replace(fault, headers={**fault.headers, "Connection": "close"})


def named(fault: Fault, replica: str) -> Fault:
    """Add the name of the server among its replicas to the headers, if it has one."""
    return replace(fault, headers={**fault.headers, REPLICA: replica}) if replica else fault

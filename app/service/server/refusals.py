"""Checks of a request's head, and error replies that do not come from the application."""

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import replace

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.contracts.errors import Overloaded
from app.service.api.errors import fault_of, http_fault
from app.service.api.problems import MEDIA_TYPE, Fault, Refused, members, reply

ABSOLUTE = re.compile(rb"https?://([^/?#@]+)([/?#].*)?", re.IGNORECASE)


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Split a target in absolute form into authority and rest; other forms have no authority.

    Raises Refused (400) for a scheme other than http and https, and for a user name.
    """
    if b"://" not in target or target.startswith(b"/"):
        return b"", target
    found = ABSOLUTE.fullmatch(target)
    if found is None:
        raise Refused(http_fault(400, "The target is neither a path nor an HTTP URL."))
    authority, rest = found.groups(b"")
    return authority, rest if rest.startswith(b"/") else b"/" + rest


def read_framing(
    headers: Iterable[tuple[bytes, bytes]], *, version: str, upgrade: bool
) -> int | None:
    """Return the length of the body in bytes: 0 without a body, None if it is chunked.

    The parser has checked the syntax: at most one Content-Length, which is a number, and not
    together with Transfer-Encoding.

    Raises Refused: 505 for an unknown version, 501 for an unknown transfer coding (RFC 9112, 6.1),
    400 for other faults.
    """
    if version not in ("1.0", "1.1"):
        raise Refused(version_unknown())
    hosts: list[bytes] = []
    length = 0
    codings: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            codings += value.lower().split(b",")
    if len(hosts) != 1 and (hosts or version != "1.0"):
        raise Refused(
            http_fault(400, f"A request must have one Host header, received {len(hosts)}.")
        )
    if hosts == [b""]:
        raise Refused(http_fault(400, "The Host header is empty."))
    if codings:
        _check_codings([coding.strip() for coding in codings], version)
    if upgrade and (codings or length):
        # The parser treats data after an upgrade as another protocol and drops the body.
        raise Refused(http_fault(400, "A request with a body cannot request an upgrade."))
    return None if codings else length


def version_unknown() -> Fault:
    return http_fault(505, "The supported versions of HTTP are 1.0 and 1.1.")


def _check_codings(codings: list[bytes], version: str) -> None:
    if version == "1.0":
        raise Refused(http_fault(400, "HTTP/1.0 does not allow Transfer-Encoding."))
    if codings.count(b"chunked") > 1:
        raise Refused(http_fault(400, "Transfer-Encoding lists chunked more than once."))
    if codings != [b"chunked"]:
        raise Refused(http_fault(501, "The only supported Transfer-Encoding is chunked."))


REFUSED_CONNECTIONS = 16
"""Connections beyond the limit that get a 503; further ones are closed at once. OWN_DESCRIPTORS in
app.service.server.system includes their descriptors."""


def fault_of_parser(error: httptools.HttpParserError) -> Fault:
    """Return the fault for an error of the parser or of our callbacks."""
    if isinstance(error.__context__, Refused):
        return error.__context__.fault
    if str(error) == "Invalid HTTP version":
        return version_unknown()
    return http_fault(400, "The request is not valid HTTP/1.1.")


def too_slow(what: str, *, limit: float) -> Fault:
    """Build the 408 fault; `limit` is in seconds."""
    detail = f"The {what} did not arrive within {limit:g} seconds."
    return replace(http_fault(408, detail), limit=limit)


async def refuse_crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application that replaces ours if too many connections are open."""
    scope["state"]["request_id"] = secrets.token_hex(8)
    fault = overloaded("Too many connections are open.")
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

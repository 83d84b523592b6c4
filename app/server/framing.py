"""What a request's head says of where it goes and where it ends, and what must be refused.

The parser has checked the syntax: one Content-Length at most, a number, and not beside
Transfer-Encoding.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.api.errors import http_fault
from app.api.problems import Fault


class Refused(Exception):
    """A callback raises this to end the parsing."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


def read_framing(
    headers: Iterable[tuple[bytes, bytes]], *, version: str, upgrade: bool
) -> int | None:
    """The length of the body in bytes: 0 where there is none, None where it comes in chunks.

    Raises Refused: 400, and 501 for a transfer coding that is not known
    (RFC 9112, 6.1).
    """
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
        raise Refused(http_fault(400, f"A request has one Host header, received {len(hosts)}."))
    if codings:
        _check_codings([coding.strip() for coding in codings], version)
    if upgrade and (codings or length):
        # The parser takes what follows an upgrade for another protocol and drops the body.
        raise Refused(http_fault(400, "A request with a body cannot ask for an upgrade."))
    return None if codings else length


def _check_codings(codings: list[bytes], version: str) -> None:
    if version == "1.0":
        raise Refused(http_fault(400, "HTTP/1.0 has no Transfer-Encoding."))
    if codings.count(b"chunked") > 1:
        raise Refused(http_fault(400, "Transfer-Encoding says chunked more than once."))
    if codings != [b"chunked"]:
        raise Refused(http_fault(501, "The only Transfer-Encoding that is known is chunked."))

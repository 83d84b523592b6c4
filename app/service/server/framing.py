"""Read the target and the framing of a request from its head, and reject invalid combinations.

The parser has checked the syntax: at most one Content-Length, which is a number, and not together
with Transfer-Encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from app.service.api.errors import http_fault
from app.service.api.problems import Fault, Refused

VERSIONS = ("1.0", "1.1")
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

    Raises Refused: 505 for an unknown version, 501 for an unknown transfer coding (RFC 9112, 6.1),
    400 for other faults.
    """
    if version not in VERSIONS:
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

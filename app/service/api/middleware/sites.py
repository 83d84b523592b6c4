"""Protection against requests that a page of another site makes through its visitor's browser."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.types import Scope

from app.contracts.errors import CrossSite, HostNotAllowed
from app.service.api.middleware.keys import is_health

ANY = "*"
SAFE = ("GET", "HEAD", "OPTIONS")
OWN = (b"same-origin", b"none")
HOST = re.compile(rb"(?:\[([^\[\]]+)\]|([^:\[\]]+?)\.?)(?::[0-9]*)?")
"""Matches an address in brackets, or a name without its final dot, with an optional port."""


class Sites:
    """Accepts a request if its Host is one of the server's names and no other site's page sent it.

    A page can make its own name resolve to this machine (DNS rebinding). The browser then sends
    that name as Host. A page can also send a form or a text to any address without a preflight. The
    browser then reports in Sec-Fetch-Site that the page is not the server's own. Starlette's
    TrustedHostMiddleware is not used because it would answer in plain text.
    """

    def __init__(self, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """`hosts` come from Settings.hosts; pages of `origins` may send any request."""
        self._any = ANY in hosts
        self._names = frozenset(host.encode("latin-1") for host in hosts)
        self._endings = tuple(name[1:] for name in self._names if name.startswith(b"*."))
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)

    def refusal(self, scope: Scope) -> HostNotAllowed | CrossSite | None:
        """Return why the request is rejected, or None."""
        host: bytes | None = None
        site = origin = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"origin":
                origin = value
        # Only HTTP/1.0 clients may omit Host, and no browser does.
        foreign = not (self._any or host is None or self._allowed(host))
        if foreign and not is_health(scope["path"]):  # probes use the server's address as Host
            return HostNotAllowed(
                "The Host header is none of this server's names, which PADDLEPOOL_ALLOWED_HOSTS "
                "lists."
            )
        # Browsers omit Sec-Fetch-Site for plain HTTP to another machine.
        elsewhere = site not in OWN if site else origin and _is_of_another(origin, host)
        if elsewhere and scope["method"] not in SAFE and origin not in self._origins:
            return CrossSite(
                "A page of another site sent this; PADDLEPOOL_CORS_ORIGINS lists those that may."
            )
        return None

    def _allowed(self, host: bytes) -> bool:
        found = HOST.fullmatch(host.lower())
        name = (found[1] or found[2]) if found else b""
        return name in self._names or name.endswith(self._endings)


def _is_of_another(origin: bytes, host: bytes | None) -> bool:
    return host is None or origin.lower().partition(b"://")[2] != host.lower()

"""Optional API keys: which paths ask for one, how one is compared, and whose request it is."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import fault_of
from app.api.pages import FOLDERS, PAGES
from app.api.problems import reply
from app.contracts.caller import CALLER, Caller
from app.contracts.errors import Forbidden, Unauthorized

ADMIN_PREFIX = "/v2/repository"
OPEN = (*PAGES.values(), "/docs", "/openapi.json")
OPEN_BELOW = (*(f"/{folder}/" for folder in FOLDERS), "/docs/")
"""The same on every installation; pages that a browser opens before it can send a key."""


IPV6_NETWORK = 64
"""Bits of an address that tell one client from another: whoever has one has all below them."""


class Keys:
    """Lets a request pass whose `Authorization: Bearer` or `X-Api-Key` is one of the keys.

    The caller is the key, or the client's address where there are no keys.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[bytes],
        start_keys: Sequence[bytes],
        admin_key: bytes | None,
        health_needs_key: bool,
        metrics_needs_key: bool,
    ) -> None:
        """`start_keys` alone may start instance groups; everybody may where there are none."""
        self._app = app
        self._keys = tuple(dict.fromkeys((*keys, *start_keys)))
        may_start = [not start_keys or key in start_keys for key in self._keys]
        self._callers = tuple(
            Caller(name=f"key {place}", may_start=may) for place, may in enumerate(may_start)
        )
        self._anybody_may_start = not start_keys
        self._needs_keys = bool(keys)
        self._admin_keys = () if admin_key is None else (admin_key,)
        self._health_needs_key = health_needs_key
        self._metrics_needs_key = metrics_needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope, Headers(scope=scope))
            if refusal is not None:
                await reply(fault_of(refusal), scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Unauthorized | Forbidden | None:
        path = str(scope["path"])
        if path == ADMIN_PREFIX or path.startswith(ADMIN_PREFIX + "/"):
            if not self._admin_keys:
                return Forbidden("Model control is off: the server has no admin key.")
            found = _find(headers, self._admin_keys, "the admin key")
            return None if isinstance(found, int) else found
        if self._needs_keys and self._needs_key(path):
            found = _find(headers, self._keys, "an API key")
            if not isinstance(found, int):
                return found
            CALLER.set(self._callers[found])
        elif not is_open(path):
            CALLER.set(self._without_key(scope, headers))
        return None

    def _without_key(self, scope: Scope, headers: Headers) -> Caller:
        """A key is not asked for; who has one of those that may start groups may offer it."""
        if self._keys and isinstance(found := _find(headers, self._keys, ""), int):
            return self._callers[found]
        client = scope.get("client")
        name = client_network(client[0]) if client else ""
        return Caller(name=name, may_start=self._anybody_may_start)

    def _needs_key(self, path: str) -> bool:
        if path == "/metrics":
            return self._metrics_needs_key
        if is_health(path):
            return self._health_needs_key
        return not is_open(path)


def is_health(path: str) -> bool:
    return path.startswith("/v2/health/") or (
        path.startswith("/v2/models/") and path.endswith("/ready")
    )


def is_open(path: str) -> bool:
    """What probes, scrapers and browsers ask before they could send a key."""
    return path in OPEN or path.startswith(OPEN_BELOW) or path == "/metrics" or is_health(path)


def client_network(address: str) -> str:
    """The address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], IPV6_NETWORK), strict=False))
    except ValueError:
        return address


def _find(headers: Headers, keys: Sequence[bytes], wanted: str) -> Unauthorized | int:
    """The place of the offered key among the keys, or why there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    offered = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not offered:
        return Unauthorized(
            f"This needs {wanted}, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`."
        )
    # Headers are latin-1 on the wire. Every key is compared, so that time tells nothing.
    given = offered.encode("latin-1")
    matches = [hmac.compare_digest(given, key) for key in keys]
    if not any(matches):
        return Unauthorized(f"The key in the request is not {wanted}.")
    return matches.index(True)

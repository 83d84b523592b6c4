"""Optional API keys: which paths ask for one, how one is compared, and whose request it is."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers

from app.contracts.caller import ANYBODY, Caller, Quota
from app.contracts.errors import Forbidden, Unauthorized
from app.service.api.pages import FOLDERS, ICON, PAGES

ADMIN_PREFIX = "/v2/repository"
OPEN = frozenset((*PAGES.values(), ICON, "/docs", "/openapi.json"))
OPEN_BELOW = (*(f"/{folder}/" for folder in FOLDERS), "/docs/")
"""The same on every installation; pages that a browser opens before it can send a key."""

HEALTH = re.compile(r"/health|/v2/health/.*|/v2/models/.+/ready")
"""Of the server, a model or a version; `/v2/models/ready` describes a model of that name."""

WRONG_KEYS = "wrong admin keys"
WRONG_KEYS_PER_MINUTE = 10
"""For each address."""

IPV6_NETWORK = 64
"""Bits of an address that tell one client from another: whoever has one has all below them."""


class KeyRules:
    """Which paths ask for a key, and whose request it is: the key's, or the client's address where
    there are no keys. The same for every door."""

    def __init__(
        self,
        *,
        keys: Sequence[bytes],
        start_keys: Sequence[bytes],
        admin_key: bytes | None,
        wrong_admin_keys: Callable[[str], Quota],
        health_needs_key: bool,
        metrics_needs_key: bool,
    ) -> None:
        """`start_keys` alone may start instance groups; everybody may where there are none.

        `wrong_admin_keys` gives the quota of an address.
        """
        self._keys = tuple(dict.fromkeys((*keys, *start_keys)))
        may_start = [not start_keys or key in start_keys for key in self._keys]
        self._callers = tuple(
            Caller(name=f"key {place}", may_start=may) for place, may in enumerate(may_start)
        )
        self._anybody_may_start = not start_keys
        self._needs_keys = bool(keys)
        self._wrong_admin_keys = wrong_admin_keys
        self._admin_keys = () if admin_key is None else (admin_key,)
        self._health_needs_key = health_needs_key
        self._metrics_needs_key = metrics_needs_key

    def caller(self, path: str, headers: Headers, address: str) -> Caller:
        """Return the caller of `path`. Raises Unauthorized, Forbidden and QuotaExceeded."""
        if path == ADMIN_PREFIX or path.startswith(ADMIN_PREFIX + "/"):
            if not self._admin_keys:
                raise Forbidden("Model control is off: the server has no admin key.")
            self._check_admin(headers, address)
            return ANYBODY
        if self._needs_keys and self._needs_key(path):
            return self._callers[_find(headers, self._keys, "an API key")]
        return ANYBODY if is_open(path) else self._without_key(headers, address)

    def _check_admin(self, headers: Headers, address: str) -> None:
        quota = self._wrong_admin_keys(client_network(address))
        quota.spend(WRONG_KEYS, 0)  # the right key tells nothing once the quota is used up
        try:
            _find(headers, self._admin_keys, "the admin key")
        except Unauthorized:
            if _offered(headers):  # a request without a key guesses nothing
                quota.spend(WRONG_KEYS, 1)
            raise

    def _without_key(self, headers: Headers, address: str) -> Caller:
        """Return the caller of an open path: an optional key may allow starting groups."""
        if self._keys:
            with contextlib.suppress(Unauthorized):
                return self._callers[_find(headers, self._keys, "")]
        name = client_network(address) if address else ""
        return Caller(name=name, may_start=self._anybody_may_start)

    def _needs_key(self, path: str) -> bool:
        if path == "/metrics":
            return self._metrics_needs_key
        if is_health(path):
            return self._health_needs_key
        return not is_open(path)


def is_health(path: str) -> bool:
    return HEALTH.fullmatch(path) is not None


def is_routine(path: str) -> bool:
    """What probes and scrapers ask all the time."""
    return path == "/metrics" or is_health(path)


def is_open(path: str) -> bool:
    """What probes, scrapers and browsers ask before they could send a key."""
    return path in OPEN or path.startswith(OPEN_BELOW) or is_routine(path)


def client_network(address: str) -> str:
    """The address, or the network of an IPv6 address; of one that stands for IPv4, as a socket of
    both kinds has it, the IPv4 address."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, IPV6_NETWORK), strict=False))


def _offered(headers: Headers) -> str:
    """Return the key in the request, or an empty string."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _find(headers: Headers, keys: Sequence[bytes], wanted: str) -> int:
    """The place of the offered key among the keys. Raises Unauthorized."""
    offered = _offered(headers)
    if not offered:
        raise Unauthorized(
            f"This needs {wanted}, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`."
        )
    # Headers are latin-1 on the wire. Every key is compared, so that time tells nothing.
    given = offered.encode("latin-1")
    matches = [hmac.compare_digest(given, key) for key in keys]
    if not any(matches):
        raise Unauthorized(f"The key in the request is not {wanted}.")
    return matches.index(True)

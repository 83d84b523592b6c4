"""Access rules: optional API keys, and protection against pages of other sites."""

import contextlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

from paddlepool.contracts.caller import ANYBODY, Caller, Quota
from paddlepool.contracts.errors import CrossSite, Forbidden, HostNotAllowed, Unauthorized
from paddlepool.service.api.pages import FOLDERS, ICON, PAGES
from paddlepool.settings.server import Settings

ADMIN_PREFIX = "/v2/repository"
OPEN = frozenset((*PAGES.values(), ICON, "/docs", "/openapi.json"))
OPEN_BELOW = (*(f"/{folder}/" for folder in FOLDERS), "/docs/")
"""Prefixes of paths that need no key, like the paths in OPEN: pages are the same on every
installation, and a browser loads them before it can send a key."""

HEALTH = re.compile(r"/health|/v2/health/.*|/v2/models/.+/ready")
"""Matches health and readiness of the server, a model or a version, but not `/v2/models/ready`, the
metadata of a model named `ready`."""

WRONG_KEYS = "wrong admin keys"
WRONG_KEYS_PER_MINUTE = 10
"""Maximum wrong admin keys per minute from one client."""

IPV6_NETWORK = 64
"""Leading bits of an IPv6 address that identify a client: it can use every address of its /64."""


class KeyRules:
    """Decides which paths need a key, and identifies the caller by its key, or else its address."""

    def __init__(
        self, settings: Settings, keys: Sequence[bytes], wrong_admin_keys: Callable[[str], Quota]
    ) -> None:
        """`keys` are the API keys of `settings` and of the key file; without any, none is needed.

        Only callers with one of `settings.start_group_keys` may start groups; if there are none,
        every caller may. `wrong_admin_keys` returns the quota of wrong admin keys of a client, by
        its address.
        """
        start_keys = [key.get_secret_value().encode() for key in settings.start_group_keys]
        admin_key = settings.admin_key
        self._settings = settings
        self._callers = {
            key: Caller(name=f"key {place}", may_start=not start_keys or key in start_keys)
            for place, key in enumerate(dict.fromkeys((*keys, *start_keys)))
        }
        self._anybody_may_start = not start_keys
        self._needs_keys = bool(keys)
        self._wrong_admin_keys = wrong_admin_keys
        self._admin_keys = () if admin_key is None else (admin_key.get_secret_value().encode(),)

    def caller(self, path: str, headers: Headers, address: str) -> Caller:
        """Return who calls `path`: the owner of the request's key, or the client's address.

        It is ANYBODY for model control, and for an open path that needs no key. Raises Unauthorized
        if the path needs a key and the request has no valid one, Forbidden for model control if the
        server has no admin key, and QuotaExceeded after too many wrong admin keys.
        """
        if path == ADMIN_PREFIX or path.startswith(ADMIN_PREFIX + "/"):
            if not self._admin_keys:
                raise Forbidden("Model control is off: the server has no admin key.")
            self._check_admin(headers, address)
            return ANYBODY
        if self._needs_keys and self._needs_key(path):
            return self._callers[_find(headers, self._callers, "an API key")]
        return ANYBODY if is_open(path) else self._without_key(headers, address)

    def _check_admin(self, headers: Headers, address: str) -> None:
        quota = self._wrong_admin_keys(client_network(address))
        quota.spend(WRONG_KEYS, 0)  # once the quota is used up, even the right key fails
        try:
            _find(headers, self._admin_keys, "the admin key")
        except Unauthorized:
            if _key_of(headers):  # a request without a key is no guess
                quota.spend(WRONG_KEYS, 1)
            raise

    def _without_key(self, headers: Headers, address: str) -> Caller:
        """Return the caller of a path that needs no key: by a valid key, else by the address.

        A valid key may allow the caller to start groups.
        """
        if self._callers:
            with contextlib.suppress(Unauthorized):
                return self._callers[_find(headers, self._callers, "")]
        name = client_network(address) if address else ""
        return Caller(name=name, may_start=self._anybody_may_start)

    def _needs_key(self, path: str) -> bool:
        if path == "/metrics":
            return self._settings.metrics_needs_key
        if is_health(path):
            return self._settings.health_needs_key
        return not is_open(path)


def is_health(path: str) -> bool:
    return HEALTH.fullmatch(path) is not None


def is_routine(path: str) -> bool:
    """Return whether probes or scrapers request this path regularly."""
    return path == "/metrics" or is_health(path)


def is_open(path: str) -> bool:
    """Return whether this path is for probes, scrapers or pages, and needs no key by default."""
    return path in OPEN or path.startswith(OPEN_BELOW) or is_routine(path)


def client_network(address: str) -> str:
    """Reduce an IPv6 address to its network, and an IPv4-mapped one to the IPv4 address.

    Any other text is returned unchanged.
    """
    if ":" not in address:
        return address
    try:
        ipv6 = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if ipv6.ipv4_mapped is not None:
        return str(ipv6.ipv4_mapped)
    return str(ipaddress.IPv6Network((ipv6, IPV6_NETWORK), strict=False))


def _key_of(headers: Headers) -> str:
    """Return the token of an `Authorization: Bearer`, else X-Api-Key; empty if both are missing."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _find(headers: Headers, keys: Collection[bytes], kind: str) -> bytes:
    """Return the one of `keys` that the request has; `kind` names them in errors.

    Raises Unauthorized if the request has no key or another one.
    """
    key = _key_of(headers).encode("latin-1")
    if not key:
        raise Unauthorized(
            f"This needs {kind}, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`."
        )
    # Every key is compared, so the duration reveals nothing.
    matches = [valid for valid in keys if hmac.compare_digest(key, valid)]
    if not matches:
        raise Unauthorized(f"The key in the request is not {kind}.")
    return matches[0]


ANY = "*"
SAFE = ("GET", "HEAD", "OPTIONS")
OWN = (b"same-origin", b"none")
HOST = re.compile(rb"(?:\[([^\[\]]+)\]|([^:\[\]]+?)\.?)(?::[0-9]*)?")
"""Matches an address in brackets, or a name without its final dot, with an optional port."""


class Sites:
    """Rejects requests with a Host of another name, and requests that pages of other sites send.

    Requests for health may have any Host, and HTTP/1.0 may omit it. Pages of other sites may send
    GET, HEAD and OPTIONS; those of `origins` may send anything.

    Another site can make its own name resolve to this machine (DNS rebinding); the browser then
    sends that name as Host. Its pages can also send a form or a text to any address without a
    preflight; the browser then reports in Sec-Fetch-Site that the page is not the server's own.
    Starlette's TrustedHostMiddleware is not used because it would answer in plain text.
    """

    def __init__(self, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """`hosts` come from Settings.hosts; pages of `origins` may send any request."""
        self._any = ANY in hosts
        self._names = frozenset(host.encode("latin-1") for host in hosts)
        self._endings = tuple(name[1:] for name in self._names if name.startswith(b"*."))
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)

    def refusal(self, scope: Scope) -> HostNotAllowed | CrossSite | None:
        """Return the error that rejects the request, or None if it is accepted."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host, origin = headers.get(b"host"), headers.get(b"origin", b"")
        site = headers.get(b"sec-fetch-site", b"")
        # Only HTTP/1.0 clients may omit Host, and no browser does.
        foreign = not (self._any or host is None or self._allowed(host))
        if foreign and not is_health(scope["path"]):  # probes use the server's address as Host
            return HostNotAllowed(
                "The Host header is not one of this server's names, which "
                "PADDLEPOOL_ALLOWED_HOSTS lists."
            )
        # Browsers omit Sec-Fetch-Site for plain HTTP to another machine.
        elsewhere = site not in OWN if site else origin and _is_other_site(origin, host)
        if elsewhere and scope["method"] not in SAFE and origin not in self._origins:
            return CrossSite(
                "A page of another site sent this; PADDLEPOOL_CORS_ORIGINS lists those that may."
            )
        return None

    def _allowed(self, host: bytes) -> bool:
        match = HOST.fullmatch(host.lower())
        name = (match[1] or match[2]) if match else b""
        return name in self._names or name.endswith(self._endings)


def _is_other_site(origin: bytes, host: bytes | None) -> bool:
    return host is None or origin.lower().partition(b"://")[2] != host.lower()

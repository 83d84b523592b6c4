"""Optional API keys: which paths ask for one, and how one is compared."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import fault_of
from app.api.problems import reply
from app.contracts.errors import Forbidden, Unauthorized

ADMIN_PREFIX = "/v2/repository"
OPEN = ("/", "/docs", "/openapi.json")
OPEN_BELOW = ("/demo/", "/docs/")
"""The same on every installation; pages that a browser opens before it can send a key."""


class Keys:
    """Lets a request pass whose `Authorization: Bearer` or `X-Api-Key` is one of the keys."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[bytes],
        admin_key: bytes | None,
        health_needs_key: bool,
        metrics_needs_key: bool,
    ) -> None:
        self._app = app
        self._keys = tuple(keys)
        self._admin_keys = () if admin_key is None else (admin_key,)
        self._health_needs_key = health_needs_key
        self._metrics_needs_key = metrics_needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(str(scope["path"]), Headers(scope=scope))
            if refusal is not None:
                await reply(fault_of(refusal), scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Unauthorized | Forbidden | None:
        if path == ADMIN_PREFIX or path.startswith(ADMIN_PREFIX + "/"):
            if not self._admin_keys:
                return Forbidden("Model control is off: the server has no admin key.")
            return _check(headers, self._admin_keys, "the admin key")
        if self._keys and self._needs_key(path):
            return _check(headers, self._keys, "an API key")
        return None

    def _needs_key(self, path: str) -> bool:
        if path in OPEN or path.startswith(OPEN_BELOW):
            return False
        if path == "/metrics":
            return self._metrics_needs_key
        if path.startswith("/v2/health/") or (
            path.startswith("/v2/models/") and path.endswith("/ready")
        ):
            return self._health_needs_key
        return True


def _check(headers: Headers, keys: Sequence[bytes], wanted: str) -> Unauthorized | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    offered = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not offered:
        return Unauthorized(
            f"This needs {wanted}, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`."
        )
    # Headers are latin-1 on the wire. Every key is compared, so that time tells nothing.
    given = offered.encode("latin-1")
    matches = [hmac.compare_digest(given, key) for key in keys]
    return None if any(matches) else Unauthorized(f"The key in the request is not {wanted}.")

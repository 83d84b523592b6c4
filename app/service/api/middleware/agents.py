"""Clients known by their name get the form they can read, under a path that has another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send


class Agents:
    """Leads a request to another path where its User-Agent is one of those named. Pages stay."""

    def __init__(self, app: ASGIApp, paths: Mapping[str, tuple[str, Sequence[bytes]]]) -> None:
        """`paths` has for a path the one that answers instead, and parts of a User-Agent, of which
        one must be there."""
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        led = self._paths.get(scope["path"]) if scope["type"] == "http" else None
        if led is not None and scope["method"] not in ("GET", "HEAD"):
            path, agents = led
            agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
            if any(each in agent for each in agents):
                scope = {**scope, "path": path}
        await self._app(scope, receive, send)

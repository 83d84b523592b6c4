"""Clients known by their name get the form they can read, under a path that has another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send


class Agents:
    """Leads a request to another path where its User-Agent holds one of `agents`. Pages stay."""

    def __init__(self, app: ASGIApp, *, agents: Sequence[bytes], paths: Mapping[str, str]) -> None:
        """`paths` has the path that is asked for, and the one that answers."""
        self._app = app
        self._agents = tuple(agents)
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = self._paths.get(scope["path"]) if scope["type"] == "http" else None
        if path is not None and scope["method"] not in ("GET", "HEAD"):
            agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
            if any(each in agent for each in self._agents):
                scope = {**scope, "path": path}
        await self._app(scope, receive, send)

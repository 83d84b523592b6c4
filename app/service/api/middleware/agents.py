"""Route known clients, by their User-Agent, to the format that they can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send


class Agents:
    """Changes the path of a request by its User-Agent. GET and HEAD, for pages, are unchanged."""

    def __init__(self, app: ASGIApp, paths: Mapping[str, tuple[str, Sequence[bytes]]]) -> None:
        """`paths` maps a path to its replacement and to substrings of a User-Agent.

        The path is replaced if the User-Agent contains one of the substrings.
        """
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

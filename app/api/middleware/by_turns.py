"""Requests that came together begin one after the other, callers by turns."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from app.turns import Turns


class ByTurns:
    """Stands behind the layer that says whose a request is."""

    def __init__(self, app: ASGIApp, *, turns: Turns) -> None:
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._turns.mine()
        await self._app(scope, receive, send)

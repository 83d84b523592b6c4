"""The answer where too many connections are open to look at a request."""

from __future__ import annotations

import secrets

from starlette.types import Receive, Scope, Send

from app.api.problems import Fault, reply
from app.contracts.errors import Overloaded

TOLD_CONNECTIONS = 16
"""Connections beyond the limit that are kept until they ask, and get this answer; the next is
closed at once. Their descriptors are among the server's own (app.server.descriptors)."""


async def refuse_crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """An application in the place of ours, as a backstop."""
    scope["state"]["request_id"] = secrets.token_hex(8)
    fault = Fault(
        status=503,
        code=Overloaded.code,
        title=Overloaded.title,
        detail="Too many connections are open.",
        headers={"Retry-After": "1", "Connection": "close"},
    )
    await reply(fault, scope)(scope, receive, send)

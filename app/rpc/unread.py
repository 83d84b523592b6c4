"""Replies of calls that are not over: until then their client has not taken them."""

from __future__ import annotations

from typing import Any

from app.api.middleware.body_budget import BodyBudget

SMALL_BYTES = 64 * 1024
"""Less than a connection's own buffers. Whoever leaves large replies may still ask for health."""


class UnreadReplies:
    """For one event loop. How much of a reply its client has taken gRPC does not say: all of it
    counts until the call is over."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes, of all together."""
        self._held = BodyBudget(limit, what="replies that their clients do not take")

    def hold(self, size: int, context: Any) -> None:
        """Count a reply of `size` bytes as long as its call lasts. Raises Overloaded, and
        FileTooLarge where it would not fit alone."""
        if size <= SMALL_BYTES:
            return
        reply = self._held.begin(size)
        self._held.take(reply, size)
        self._held.finish(reply)
        context.add_done_callback(lambda _: self._held.end(reply))

"""Replies of calls that are not over: until then their client has not taken them."""

from __future__ import annotations

from typing import Any

from app.contracts.errors import Overloaded

SMALL_BYTES = 64 * 1024
"""Less than a connection's own buffers. Whoever leaves large replies may still ask for health."""
RETRY_SECONDS = 1.0


class ReplyBudget:
    """For one event loop. How much of a reply its client has taken gRPC does not say: all of it
    counts until the call is over."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes, of all together."""
        self._limit = limit
        self._held = 0

    def hold(self, size: int, context: Any) -> None:
        """Count a reply of `size` bytes as long as its call lasts. Raises Overloaded."""
        if size <= SMALL_BYTES:
            return
        if self._held + size > self._limit:
            raise Overloaded(
                f"replies that their clients do not take hold {self._held} bytes, and this one has "
                f"{size}; the limit is {self._limit}",
                retry_after=RETRY_SECONDS,
                limit=self._limit,
                received=self._held + size,
            )
        self._held += size

        def over(_: Any) -> None:
            self._held -= size

        context.add_done_callback(over)

"""What all requests may hold together: a count, a limit, and 503 beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.contracts.errors import FileTooLarge, Overloaded

RETRY_SECONDS = 1.0


class Budget:
    """For one event loop."""

    def __init__(self, limit: int, *, what: str) -> None:
        """`what` is counted, in the words of a refusal: "bytes of request bodies"."""
        self.limit = limit
        self.used = 0
        self._what = what

    def take(self, amount: int) -> None:
        """Raises Overloaded, and takes nothing, where less is left."""
        wanted = self.used + amount
        if wanted > self.limit:
            raise Overloaded(
                f"{self.used} {self._what} are held and {amount} more asked for; the limit is "
                f"{self.limit}",
                retry_after=RETRY_SECONDS,
                limit=self.limit,
                received=wanted,
            )
        self.used = wanted

    def give_back(self, amount: int) -> None:
        self.used -= amount

    @contextmanager
    def held(self, amount: int = 1) -> Iterator[None]:
        """Raises Overloaded."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)


def too_large(cap: int, received: int | str) -> FileTooLarge:
    return FileTooLarge(
        f"The body has {received} bytes, the limit is {cap}.", limit=cap, received=received
    )

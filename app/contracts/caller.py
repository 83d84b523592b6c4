"""Who asks: known at the door, and needed wherever one client must not be served at another's cost.

A context variable, because a task's pipeline lies between, which need not know for whom it works.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


class Quota(Protocol):
    """Remaining quota of a caller; for one event loop."""

    def spend(self, what: str, amount: int) -> None:
        """Take `amount` of `what` ("pixels", "texts").

        Raises QuotaExceeded where nothing is left; what is left may be less than the amount.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`name` tells callers apart: a key's place or an address; empty where nobody is asked.

    `may_start` says whether naming an instance group that is not running starts it.
    """

    name: str = ""
    may_start: bool = True
    quota: Quota | None = None

    def spend(self, what: str, amount: int) -> None:
        if self.quota is not None:
            self.quota.spend(what, amount)


ANYBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)

"""The caller of the current request, for quotas and fair queues.

CALLER is a context variable, so that the pipelines between HTTP and the queue need not pass it on.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


class Quota(Protocol):
    """The quota that one caller has left; used from one event loop only."""

    def spend(self, what: str, amount: int) -> None:
        """Subtract `amount` of the unit `what` ("pixels", "texts") from the quota.

        Raises QuotaExceeded if nothing is left. While anything is left, any amount is accepted.
        Units without a limit are ignored.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request, by API key or address: the unit of quotas and of fair queues.

    `name` is "key" and the number of its API key, or the client's address (for IPv6, its network).
    It is empty if callers are not distinguished. `quota` is None if nothing is limited.
    `may_start`: whether the caller may start an instance group by naming it in a request.
    """

    name: str = ""
    may_start: bool = True
    quota: Quota | None = None

    def spend(self, what: str, amount: int) -> None:
        if self.quota is not None:
            self.quota.spend(what, amount)


ANYBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the current request; its hash decides which of two versions answers."""

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

        Raises QuotaExceeded if less than one unit is left. Otherwise any amount is accepted, and
        the quota may become negative. Units without a limit are ignored.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request, by API key or address: the unit of quotas and of fair queues.

    `name` is "key N" for an API key, counted from 0, or the client's address (for IPv6, its
    network). It is empty if callers are not distinguished, and outside of a request. `may_start`
    says whether the caller's requests may start instance groups other than default groups. `quota`
    is None if nothing is limited.
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
"""The id of the current request; empty outside of one.

While a new version of a model answers a fraction of the requests, a hash of the id decides which
version answers."""

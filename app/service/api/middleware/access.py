"""The id of a request, its log line and its duration, for HTTP and gRPC."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping

from app.observability.metrics import METHODS, OTHER, UNMATCHED, Metrics

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLIENT_GONE = 499
log = logging.getLogger("paddlepool.access")


def record(
    metrics: Metrics,
    *,
    request_id: str,
    method: str,
    route: str | None,
    status: int,
    seconds: float,
    routine: bool,
    sent: Mapping[str, str],
) -> None:
    """Measure and log one finished request. `sent` holds model, group and timings of the answer.

    A `routine` request, from a probe or a scraper, is logged only if it failed.

    The log line has only the route's template: no path, query, text or file name of the client.
    """
    metrics.request_done(route=route, method=method, status=status, seconds=seconds)
    if routine and status < 400:
        return
    log.info(
        "request",
        extra={
            "request_id": request_id,
            "method": method if method in METHODS else OTHER,
            "route": route or UNMATCHED,
            "status": status,
            "milliseconds": round(seconds * 1000, 2),
            **sent,
        },
    )


def request_id_of(offered: str | None) -> str:
    """Return the client's own id if it is well formed, else a new one."""
    if offered is not None and REQUEST_ID.fullmatch(offered):
        return offered
    return secrets.token_hex(8)

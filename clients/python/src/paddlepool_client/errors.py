"""Errors of a request.

RequestFailed
├── Unreachable             no reply: refused, lost or late; or an invalid address, a closed client,
│                           or a parameter that cannot be encoded
├── InvalidReply            not a reply of Paddlepool; another server answers there
└── ApiError                an error reply of the server, with its code; by status:
    ├── Unauthorized        401, 403
    ├── TimedOut            408, 504
    ├── Unavailable         429, 503: the same request may be answered later
    ├── InvalidRequest      every other 4xx: the same request will fail again
    └── ServerFault         every other 5xx
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from typing import Any

import httpx


class RequestFailed(Exception):
    """The request did not get its result, for any reason."""


class Unreachable(RequestFailed):
    """No reply arrived; `__cause__` is httpx's error, if any.

    The message has the server's address, unless the request could not be built or the client is
    closed.
    """


class InvalidReply(RequestFailed):
    """The reply is not one of Paddlepool's."""


class ApiError(RequestFailed):
    """The server rejected the request or failed.

    `code` is stable and meant for programs, `detail` for people. `limit` and `received` are the
    violated limit and the received value, `errors` has one entry for each wrong field,
    `retry_after` is in seconds. If the server does not send them, `code` is "unknown", `errors` is
    empty, and `limit`, `received` and `retry_after` are None.
    """

    def __init__(
        self, status: int, problem: Mapping[str, Any], retry_after: float | None = None
    ) -> None:
        super().__init__(status, problem, retry_after)  # the arguments that pickle uses
        self.status = status
        self.code = _text(problem.get("code")) or "unknown"
        self.detail = _text(problem.get("detail"))
        self.limit = problem.get("limit")
        self.received = problem.get("received")
        errors = problem.get("errors")
        self.errors = tuple(errors) if isinstance(errors, list | tuple) else ()
        self.request_id = problem.get("request_id")
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.detail}"


class Unauthorized(ApiError):
    """The key is missing, wrong or not sufficient, or the server has disabled the endpoint."""


class TimedOut(ApiError):
    """The request did not finish within its `timeout_ms`, or did not reach the server in time."""


class Unavailable(ApiError):
    """The server is full, starting or stopping, or the caller's quota is used up.

    Raised when `Retries` allows no further attempt.
    """


class InvalidRequest(ApiError):
    """The request or its content is at fault."""


class ServerFault(ApiError):
    """The server or the model is at fault."""


BY_STATUS = {
    401: Unauthorized,
    403: Unauthorized,
    408: TimedOut,
    429: Unavailable,
    503: Unavailable,
    504: TimedOut,
}
BY_HUNDRED = {4: InvalidRequest, 5: ServerFault}


def api_error(response: httpx.Response) -> ApiError:
    """Return the error for an error reply, also for a proxy's reply without a JSON document."""
    status, headers = response.status_code, response.headers
    problem = _problem(response)
    members = {
        "detail": problem.get("error", response.reason_phrase),  # /v2 says {"error": "…"}
        "request_id": headers.get("x-request-id"),
        **problem,
    }
    kind = BY_STATUS.get(status) or BY_HUNDRED.get(status // 100, ApiError)
    return kind(status, members, _retry_after(headers.get("retry-after", "")))


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _text(value: object) -> str:
    """Return a member of an error reply as text; a gateway may send null, for example."""
    return "" if value is None else str(value)


def _retry_after(value: str) -> float | None:
    """Parse seconds, or a date as seconds from now; None if it is neither, or the date is past.

    A past date says nothing about how long to wait: the clocks may differ.
    """
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        return seconds if seconds > 0 else None
    except (ValueError, OverflowError):
        return None

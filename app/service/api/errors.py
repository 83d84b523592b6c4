"""The table that maps errors to HTTP statuses, and the functions that apply it.

errors.toml says when each error code occurs; `python -m tests.service.api.test_errors` writes the
table of docs/errors.md from it.
"""

import logging
import math
import re
import tomllib
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from app.contracts import errors
from app.service.api.problems import Fault, Refused, phrase

STATUS: Mapping[type[errors.PaddlepoolError], int] = {
    errors.PaddlepoolError: 500,
    errors.FileMissing: 422,
    errors.FileTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.UnsupportedEncoding: 415,
    errors.ImageUnreadable: 422,
    errors.ResolutionTooHigh: 422,
    errors.TooManyScans: 422,
    errors.InvalidParameter: 422,
    errors.TextEmpty: 422,
    errors.TextTooLong: 422,
    errors.TooManyInputs: 422,
    errors.InvalidTensor: 400,
    errors.OutputTooLarge: 422,
    errors.HostNotAllowed: 400,
    errors.CrossSite: 403,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.GroupNotRunning: 403,
    errors.ModelNotFound: 404,
    errors.ModelNotReady: 503,
    errors.ModelLoadFailed: 409,
    errors.Overloaded: 503,
    errors.QuotaExceeded: 429,
    errors.DeadlineExceeded: 504,
    errors.WorkerCrashed: 500,
    errors.ModelOutputInvalid: 500,
}

HTTP_CODES: Mapping[int, str] = {
    400: "invalid_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    422: "invalid_json",
    431: "headers_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "shutting_down",
    505: "http_version_not_supported",
}
"""Codes of HTTP errors that have no exception of their own."""

HTTP_DETAILS = {400: "The body cannot be parsed.", 404: "No endpoint has this path."}
INTERNAL = "The server failed to answer. The log has the details under this request id."
MODEL_LOADING_SECONDS = 2
log = logging.getLogger("paddlepool.error")


def fault_of(error: errors.PaddlepoolError) -> Fault:
    """Build the reply to a domain error. Details about the installation go only to the log."""
    if isinstance(error, errors.OperatorError) or type(error) is errors.PaddlepoolError:
        return http_fault(500, INTERNAL)
    return Fault(
        status=STATUS[type(error)],
        code=error.code,
        title=error.title,
        detail=error.message,
        limit=error.limit,
        received=error.received,
        errors=error.errors,
        headers=_headers(error),
    )


def http_fault(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Build the reply to an error of HTTP itself, such as an unknown path."""
    return Fault(
        status=status,
        code=HTTP_CODES.get(status, "invalid_request"),
        title=phrase(status),
        detail=detail,
        headers=headers or {},
    )


def _headers(error: errors.PaddlepoolError) -> dict[str, str]:
    if isinstance(error, errors.Overloaded):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, errors.ModelNotReady):
        return {"Retry-After": str(MODEL_LOADING_SECONDS)}
    if isinstance(error, errors.Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="paddlepool"'}
    return {}


def log_failure(error: BaseException, request_id: str) -> None:
    """Log what failed and where, without the exception's text: it may quote a client's input."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    log.error(
        "request failed",
        extra={
            "request_id": request_id,
            "error": type(error).__name__,
            "where": [f"{frame.name}:{frame.lineno}" for frame in frames],
        },
    )


def fault_from(error: Exception, request_id: str) -> Fault:
    """Build the reply to an exception of a request. Logs errors that no client caused."""
    if isinstance(error, HTTPException):
        cause = error.__cause__
        if isinstance(cause, errors.PaddlepoolError | Refused):
            error = cause  # FastAPI wraps errors raised while it reads the body
        elif isinstance(cause, UnicodeDecodeError):
            return http_fault(422, "The body is not UTF-8.")
    match error:
        case Refused():
            return error.fault
        case errors.PaddlepoolError():
            if isinstance(error, errors.OperatorError):
                # Messages for operators name models and settings, never a client's input.
                log.error(error.message, extra={"request_id": request_id})
            return fault_of(error)
        case RequestValidationError():
            return _fault_of_validation(error)
        case HTTPException():
            detail = HTTP_DETAILS.get(error.status_code, phrase(error.status_code))
            return http_fault(error.status_code, detail, error.headers)
    log_failure(error, request_id)
    return http_fault(500, INTERNAL)


def _fault_of_validation(error: RequestValidationError) -> Fault:
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        where = faults[0]["loc"][-1]
        return http_fault(422, f"The body is not valid JSON at character {where}.")
    if any(fault["loc"] == ("body",) and isinstance(fault["input"], bytes) for fault in faults):
        return fault_of(
            errors.UnsupportedMediaType(
                "The body must be sent with Content-Type: application/json."
            )
        )
    listed = tuple(map(_described, faults[:20]))
    context = faults[0].get("ctx", {})
    limits = ("le", "lt", "ge", "gt", "max_length", "min_length")
    return fault_of(
        errors.InvalidParameter(
            "{field}: {message}".format(**listed[0]),
            limit=next((_number(context[name]) for name in limits if name in context), None),
            received=_number(faults[0].get("input")),
            errors=listed,
        )
    )


def _number(value: object) -> int | float | None:
    """Return the value if it is a number, else None: a word may come from a client's text."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None  # excludes NaN, infinity and huge integers


def _described(fault: Mapping[str, Any]) -> dict[str, str]:
    """Return the wrong field's path and what is wrong with it."""
    place, message = fault["loc"], str(fault["msg"])
    if fault["type"] == "extra_forbidden":  # an unknown key is a client's word and is left out
        place, message = place[:-1], "Unknown field; /docs lists the known ones"
    return {"field": ".".join(map(str, place)), "message": message}


WHEN = Path(__file__).with_suffix(".toml")
"""Says when each error code occurs, in Markdown."""


class ErrorCode(NamedTuple):
    """One row of the table."""

    code: str
    status: int
    title: str
    when: str


@cache
def error_codes() -> tuple[ErrorCode, ...]:
    """All error codes sorted by name: domain errors and errors of HTTP itself."""
    domain = {
        (error.code, status, error.title)
        for error, status in STATUS.items()
        if error is not errors.PaddlepoolError
    }
    when = tomllib.loads(WHEN.read_text("utf-8"))
    of_http = {(code, status, phrase(status)) for status, code in HTTP_CODES.items()}
    return tuple(
        ErrorCode(code, status, title, when[code])
        for code, status, title in sorted(domain | of_http)
    )

"""The one table from errors to HTTP statuses, and the handlers that apply it."""

from __future__ import annotations

import logging
import math
import re
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.problems import Fault, reply
from app.contracts import errors

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
    errors.OperatorError: 500,
    errors.ConfigError: 500,
    errors.ManifestError: 500,
    errors.ExportError: 500,
    errors.DownloadError: 500,
    errors.BackendError: 500,
    errors.RunRefused: 500,
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
"""Errors of HTTP itself, which the exception tree does not know."""

INTERNAL = "The server failed while answering. The log has the details under this request id."
MODEL_LOADING_SECONDS = 2
log = logging.getLogger("paddlepool.error")


def fault_of(error: errors.PaddlepoolError) -> Fault:
    """The reply to a domain error. What concerns the installation stays in the log."""
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
    """The reply to an error of HTTP itself."""
    return Fault(
        status=status,
        code=HTTP_CODES.get(status, "invalid_request"),
        title=HTTPStatus(status).phrase,
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
    """Say what failed and where, without the exception's text: it may quote a client's input."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    log.error(
        "request failed",
        extra={
            "request_id": request_id,
            "error": type(error).__name__,
            "where": [f"{frame.name}:{frame.lineno}" for frame in frames],
        },
    )


async def _on_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.PaddlepoolError)
    if isinstance(error, errors.OperatorError):
        # The message is written for the operator; it names models and settings, never input.
        log.error(error.message, extra={"request_id": request.state.request_id})
    return reply(fault_of(error), request.scope)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    cause = error.__cause__
    if isinstance(cause, errors.PaddlepoolError):  # raised while FastAPI was reading the body
        return await _on_domain_error(request, cause)
    if isinstance(cause, UnicodeDecodeError):
        return reply(http_fault(422, "The body is not UTF-8."), request.scope)
    details = {
        400: "The body cannot be parsed.",
        404: "There is nothing under this path.",
        405: f"The method {request.method} is not allowed here.",
    }
    detail = details.get(error.status_code, HTTPStatus(error.status_code).phrase)
    headers = _allowed(request) if error.status_code == 405 else error.headers
    return reply(http_fault(error.status_code, detail, headers), request.scope)


def _allowed(request: Request) -> dict[str, str]:
    """The methods of every route to this path; the router knows those of the first."""
    methods: set[str] = set()
    for route in request.app.state.routes.all(request.scope["path"]):
        methods |= route.methods
    return {"Allow": ", ".join(sorted(methods))}


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        where = faults[0]["loc"][-1]
        return reply(
            http_fault(422, f"The body is not JSON from character {where}."), request.scope
        )
    if any(fault["loc"] == ("body",) and isinstance(fault["input"], bytes) for fault in faults):
        unsupported = errors.UnsupportedMediaType(
            "The body must be sent with Content-Type: application/json."
        )
        return reply(fault_of(unsupported), request.scope)
    first = faults[0]
    invalid = errors.InvalidParameter(
        f"{_place(first)}: {_message(first)}",
        limit=_limit(first),
        received=_number(first.get("input")),
        errors=tuple({"field": _place(fault), "message": _message(fault)} for fault in faults[:20]),
    )
    return reply(fault_of(invalid), request.scope)


def _limit(fault: Mapping[str, Any]) -> int | float | None:
    context = fault.get("ctx", {})
    names = ("le", "lt", "ge", "gt", "max_length", "min_length")
    return next((_number(context[name]) for name in names if name in context), None)


def _number(value: object) -> int | float | None:
    """A number may be sent back to the client; a word may be part of a client's text."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None  # not so: NaN, infinity, 400 digits


def _place(fault: Mapping[str, Any]) -> str:
    """The place of the fault. Keys that a client made up are not repeated."""
    if fault["type"] == "extra_forbidden":
        return ".".join(str(part) for part in fault["loc"][:-1])
    return ".".join(str(part) for part in fault["loc"])


def _message(fault: Mapping[str, Any]) -> str:
    return "Unknown field" if fault["type"] == "extra_forbidden" else str(fault["msg"])


def install(app: FastAPI) -> None:
    """Put the handlers in. Exceptions outside them end in `app.api.middleware.access`."""
    app.add_exception_handler(errors.PaddlepoolError, _on_domain_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)

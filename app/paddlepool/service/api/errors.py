"""Error replies: their forms, and the reply to each error of the domain or of HTTP.

A reply is problem+json (RFC 9457) on the server's own endpoints. It has the protocol's form under
/v2, and another server's form in a compatible API.
errors.toml says when each error code occurs; `python -m tests.service.api.test_errors` writes the
table of docs/errors.md from it.
"""

import json
import logging
import math
import re
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from paddlepool.contracts import errors

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("paddlepool.error")


class FieldFault(BaseModel):
    """One wrong field of a request."""

    field: str = Field(description="Its place, such as `query.timeout_ms` or `body.inputs.0`.")
    message: str = Field(description="The requirement.")


class Problem(BaseModel):
    """An error, as RFC 9457 defines it. `code` is stable, and /docs/errors says when each code
    occurs; `detail` is for people."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "/docs/errors#text_too_long",
                "title": "The text is too long",
                "status": 422,
                "detail": "text 1 of 1 has 2001 characters; the limit is 2000",
                "instance": "/sentiment",
                "code": "text_too_long",
                "request_id": "3057adea88f0e8c7",
                "limit": 2000,
                "received": 2001,
            }
        }
    )

    type: str = Field(description="Address of the description of this kind of error.")
    title: str = Field(description="The kind of error.")
    status: int = Field(description="The HTTP status code.")
    detail: str = Field(description="What is wrong, such as the received value and the limit.")
    instance: str = Field(description="The path of the request.")
    code: str = Field(description="A stable name for programs.")
    request_id: str = Field(description="The same as in the reply's X-Request-ID and in the log.")
    limit: int | float | str | None = Field(None, description="The violated limit.")
    received: int | float | str | None = Field(None, description="The received value.")
    errors: list[FieldFault] | None = Field(None, description="Each wrong field.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error for the client, independent of the request that it answers."""

    status: int
    code: str
    title: str
    detail: str
    limit: int | float | str | None = None
    received: int | float | str | None = None
    errors: tuple[Mapping[str, str], ...] = ()
    parameter: str = ""
    """The request's parameter that is at fault; compatible APIs have codes for some."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """Ends a request with a fault that has no domain error, such as one of HTTP itself."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorForm:
    """The form of error replies in another server's format or in the Open Inference Protocol.

    `write` builds the document from a fault and the request's id. `statuses` maps our codes and
    statuses to the format's statuses; a status without an entry stays unchanged.
    """

    model: type[BaseModel]
    write: Callable[[Fault, str], Mapping[str, Any]]
    statuses: Mapping[str | int, int] = field(default_factory=dict)

    def status(self, fault: Fault) -> int:
        return self.statuses.get(fault.code, self.statuses.get(fault.status, fault.status))


def reply(fault: Fault, scope: Scope) -> Response:
    """Build the reply to the request of `scope`, and store the fault in the scope's state."""
    path = str(scope.get("path", ""))
    state = scope.get("state", {})
    state["fault"] = fault
    request_id = str(state.get("request_id", ""))
    form: ErrorForm | None = state.get("errors")
    if form is None and (path == "/v2" or path.startswith("/v2/")):
        form = PROTOCOL
    if form is not None:
        translated = replace(fault, status=form.status(fault))
        return _json(translated, form.write(translated, request_id), "application/json")
    return _json(fault, members(fault, request_id=request_id, instance=path), MEDIA_TYPE)


def members(fault: Fault, *, request_id: str, instance: str) -> dict[str, Any]:
    """Build the members of problem+json; `instance` is the request's path.

    `limit`, `received` and `errors` are left out if the fault has none.
    """
    problem: dict[str, Any] = {
        "type": f"/docs/errors#{fault.code}",
        "title": fault.title,
        "status": fault.status,
        "detail": fault.detail,
        "instance": quote(instance[:200], errors="replace"),
        "code": fault.code,
        "request_id": request_id,
    }
    optional = {"limit": fault.limit, "received": fault.received, "errors": list(fault.errors)}
    return problem | {name: value for name, value in optional.items() if value not in (None, [])}


def _json(fault: Fault, content: Mapping[str, Any], media_type: str) -> Response:
    # ASCII output: a path may hold characters that UTF-8 cannot encode.
    return Response(
        json.dumps(content, ensure_ascii=True, allow_nan=False),
        status_code=fault.status,
        media_type=media_type,
        headers=dict(fault.headers),
    )


class ProtocolError(BaseModel):
    """An error in the form of the Open Inference Protocol."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"error": "no model of this name is served"}}
    )

    error: str = Field(description="What is wrong, such as the received and the expected value.")


class PaddleXError(BaseModel):
    """An error in the form of PaddleX's serving."""

    logId: str = Field(description="The request's id.")  # noqa: N815
    errorCode: int = Field(description="The HTTP status.")  # noqa: N815
    errorMsg: str  # noqa: N815


PADDLEX = ErrorForm(
    model=PaddleXError,
    write=lambda fault, request_id: {
        "logId": request_id,
        "errorCode": fault.status,
        "errorMsg": fault.detail,
    },
)
PROTOCOL = ErrorForm(model=ProtocolError, write=lambda fault, _id: {"error": fault.detail})

ANY_STATUSES = (400, 401, 403, 408, 413, 415, 422, 429, 500, 501, 503)
"""Error statuses of every operation."""

TASK_STATUSES = (404, 504)
"""Further error statuses of a task's endpoint."""

PHRASES = {413: "Request Entity Too Large", 422: "Unprocessable Entity"}
"""Names of statuses that Python 3.13 changed. They make replies the same on every Python."""


def phrase(status: int) -> str:
    """Return the name of an HTTP status."""
    return PHRASES.get(status) or HTTPStatus(status).phrase


def documented(*statuses: int, form: ErrorForm | None = None) -> dict[int | str, dict[str, Any]]:
    """Describe the statuses of errors for OpenAPI, in the form of problem+json or of `form`.

    With a `form`, `form.statuses` translates each of `statuses`, and the statuses to which it maps
    error codes are added.
    """
    model: type[BaseModel] = Problem
    media_type = MEDIA_TYPE
    if form is not None:
        model, media_type = form.model, "application/json"
        named = {status for code, status in form.statuses.items() if isinstance(code, str)}
        translated = {form.statuses.get(status, status) for status in statuses}
        statuses = tuple(sorted(translated | named))
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        status: {"description": phrase(status), "content": {media_type: {"schema": schema}}}
        for status in statuses
    }


_BY_STATUS: Mapping[int, Sequence[type[errors.PaddlepoolError]]] = {
    400: (errors.InvalidTensor, errors.HostNotAllowed),
    401: (errors.Unauthorized,),
    403: (errors.CrossSite, errors.Forbidden, errors.GroupNotRunning),
    404: (errors.ModelNotFound,),
    409: (errors.ModelLoadFailed, errors.CanaryConflict),
    413: (errors.FileTooLarge,),
    415: (errors.UnsupportedMediaType, errors.UnsupportedEncoding),
    422: (
        errors.FileMissing,
        errors.ImageUnreadable,
        errors.ResolutionTooHigh,
        errors.TooManyScans,
        errors.InvalidParameter,
        errors.TextEmpty,
        errors.TextTooLong,
        errors.TooManyInputs,
        errors.OutputTooLarge,
    ),
    429: (errors.QuotaExceeded,),
    500: (errors.PaddlepoolError, errors.WorkerCrashed, errors.ModelOutputInvalid),
    503: (errors.ModelNotReady, errors.Overloaded),
    504: (errors.DeadlineExceeded,),
}
STATUS = {error: status for status, group in _BY_STATUS.items() for error in group}

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


def fault_of(error: errors.PaddlepoolError) -> Fault:
    """Build the fault for a domain error.

    For an OperatorError or a plain PaddlepoolError, it is an internal error without details.
    """
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
        parameter=error.parameter,
        headers=_headers(error),
    )


def http_fault(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Build the fault for an error of HTTP itself, such as an unknown path."""
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
    """Log the exception's class and last six frames, but not its text, which may quote input."""
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
    """Build the fault for an exception of a request.

    Logs an OperatorError, and any exception that is neither a domain error nor one of HTTP.
    """
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
    # Of a value of several possible types, the deepest fault is the one that its client can mend.
    first = max(
        (fault for fault in faults if fault["loc"][:2] == faults[0]["loc"][:2]),
        key=lambda fault: len(fault["loc"]),
    )
    faults = [first, *(fault for fault in faults if fault is not first)]
    listed = tuple(map(_described, faults[:20]))
    context = first.get("ctx", {})
    limits = ("le", "lt", "ge", "gt", "max_length", "min_length")
    return fault_of(
        errors.InvalidParameter(
            "{field}: {message}".format(**listed[0]),
            limit=next((_number(context[name]) for name in limits if name in context), None),
            received=_number(first.get("input")),
            errors=listed,
        )
    )


def _number(value: object) -> int | float | None:
    """Return a number of magnitude below 1e15, also from a string of digits; else None.

    Another string is not returned, because it may be a client's text.
    """
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None  # excludes NaN, infinity and huge integers


def _described(fault: Mapping[str, Any]) -> dict[str, str]:
    """Return the members of a FieldFault: the wrong field's path, and what is wrong with it."""
    place, message = fault["loc"], str(fault["msg"])
    if fault["type"] == "extra_forbidden":  # an unknown key is a client's word and is left out
        place, message = place[:-1], "Unknown field; /docs lists the known ones"
    elif fault["type"] in ("model_type", "model_attributes_type"):  # pydantic names our class
        message = "Input should be a JSON object"
    return {"field": ".".join(map(str, place)), "message": message}


WHEN = Path(__file__).with_suffix(".toml")
"""The file that says when each error code occurs, in Markdown."""


class ErrorCode(NamedTuple):
    """An error code of the API: HTTP status, title and when it occurs. A row of docs/errors.md."""

    code: str
    status: int
    title: str
    when: str


@cache
def error_codes() -> tuple[ErrorCode, ...]:
    """Return the error codes of domain errors and of HTTP itself, sorted by name."""
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

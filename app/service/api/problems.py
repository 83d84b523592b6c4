"""The form of error replies: RFC 9457 on our own endpoints, the protocol's form under /v2."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import Scope

MEDIA_TYPE = "application/problem+json"


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
    detail: str = Field(description="The received value and the limit.")
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
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """Ends a request with a fault for which there is no domain error."""

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
    """Build the reply to the request of `scope` from a fault, and store the fault in its state."""
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
    """Build the members of problem+json; those that do not apply are left out."""
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

    model_config = ConfigDict(json_schema_extra={"example": {"error": "no such model is served"}})

    error: str = Field(description="The received and the expected value.")


PROTOCOL = ErrorForm(model=ProtocolError, write=lambda fault, _id: {"error": fault.detail})


ANY_STATUSES = (400, 401, 403, 408, 413, 415, 422, 429, 500, 501, 503)
"""Error statuses of every operation."""

TASK_STATUSES = (404, 413, 415, 422, 503, 504)
"""Further error statuses of a task's endpoint."""


PHRASES = {413: "Request Entity Too Large", 422: "Unprocessable Entity"}
"""Names of statuses that Python 3.13 changed. Replies do not depend on Python's version."""


def phrase(status: int) -> str:
    """Return the name of an HTTP status."""
    return PHRASES.get(status) or HTTPStatus(status).phrase


def documented(*statuses: int, form: ErrorForm | None = None) -> dict[int | str, dict[str, Any]]:
    """Describe these statuses for OpenAPI, in the form of problem+json or of `form`."""
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

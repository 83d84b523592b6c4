"""The span of a call, by the conventions for gRPC; where tracing is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from starlette.datastructures import Headers

from app.api.middleware.access import CLIENT_GONE
from app.api.middleware.quotas import is_free
from app.api.middleware.traced import TRACE_ID
from app.rpc.status import CODES

if TYPE_CHECKING:
    from app.observability.tracing import RequestSpan, Tracing
    from app.rpc.calls import Call, Method


def begin_span(
    tracing: Tracing, method: Method, headers: Headers, call: Call
) -> RequestSpan | None:
    """None for what quotas do not count, as over HTTP."""
    if is_free(method.path):
        return None
    name = method.route.removeprefix("/")
    span = tracing.begin(name, headers.getlist, {"rpc.system.name": "grpc", "rpc.method": name})
    if span.given:
        call.metadata[TRACE_ID.lower()] = span.trace_id
    return span


def end_span(span: RequestSpan, method: Method, status: int) -> None:
    """`status` is that of the same request over HTTP."""
    code = grpc.StatusCode.CANCELLED if status == CLIENT_GONE else CODES.get(status)
    name = "OK" if code is None else code.name
    span.end(
        method.route.removeprefix("/"),
        {"rpc.response.status_code": name},
        error="" if code is None else name,
        failed=status >= 500,
    )

"""gRPC status codes for HTTP statuses, and the metadata of errors."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from app.service.api.problems import Fault

CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,  # like gRPC's own message limit
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC codes by the HTTP status of the same error."""

PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata key: milliseconds after which a client with a retry policy retries."""


def metadata_of(fault: Fault) -> dict[str, str]:
    """Return an error's metadata: its stable code, and when to retry."""
    found = {"error-code": fault.code}
    if (seconds := fault.headers.get("Retry-After")) is not None:
        found |= {"retry-after": seconds, PUSHBACK: str(1000 * int(seconds))}
    return found

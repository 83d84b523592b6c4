"""Every `code` that a client can receive: its status, its title, and when it comes.

`python -m app.api.error_codes` writes the table of docs/errors.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from app.api.errors import HTTP_CODES, STATUS
from app.contracts.errors import OperatorError, PaddlepoolError

WHEN: Mapping[str, str] = {
    "cross_site": (
        "A browser says that a page of another site, which is not in "
        "`PADDLEPOOL_CORS_ORIGINS`, sent anything but GET, HEAD or OPTIONS."
    ),
    "deadline_exceeded": (
        "The request was not done within its `timeout_ms`. Its queued work was dropped."
    ),
    "file_missing": "No multipart field `file` or `image_file`, and no body with an image type.",
    "file_too_large": (
        "The body is larger than the endpoint's limit, which is counted while it arrives."
    ),
    "forbidden": "Model control was asked of a server that has no admin key.",
    "group_not_running": (
        "The request names an instance group that would have to be started, which takes a key "
        "of `PADDLEPOOL_START_GROUP_KEYS`."
    ),
    "headers_too_large": (
        "Request line and headers together, trailers, or the extensions of a chunk are larger than"
        " the limit."
    ),
    "host_not_allowed": (
        "The `Host` header, or the host of an absolute target, is none of "
        "`PADDLEPOOL_ALLOWED_HOSTS`."
    ),
    "http_version_not_supported": "The request is in a version of HTTP other than 1.0 and 1.1.",
    "image_unreadable": "The picture is broken, cut off, or cannot be decoded within the limits.",
    "internal_error": (
        "A fault of the server or of a model's files. The log has it under the request id."
    ),
    "invalid_json": "The body is not JSON, or not UTF-8.",
    "invalid_parameter": (
        "A parameter or field is missing, unknown or outside its limits; `errors` lists each."
    ),
    "invalid_request": "The body or the request itself cannot be parsed.",
    "invalid_tensor": "A tensor has the wrong name, type, shape or size.",
    "method_not_allowed": "The path exists, this method on it does not; `Allow` has those that do.",
    "model_load_failed": (
        "The version in the repository is unfit, and the message says why; what was served "
        "before still is."
    ),
    "model_not_found": "No model of this name and version is served.",
    "model_not_ready": (
        "The model, or the instance group that the request names, is loading or cannot be "
        "loaded; `/info` says which. `Retry-After` is set, also where waiting will not help."
    ),
    "model_output_invalid": (
        "The model's output was not a number. The input is most likely unusual."
    ),
    "not_found": "There is nothing under this path.",
    "not_implemented": "The body is sent with a `Transfer-Encoding` other than `chunked`.",
    "output_too_large": "The reply would be larger than the limit for its format.",
    "overloaded": (
        "The queue is full or too slow for the deadline, connections, request bodies, decoded "
        "pictures or groups on demand are at their limit, or so many large documents are read and "
        "written that this one's turn did not come within `timeout_default_ms`. `Retry-After` says "
        "when to come back."
    ),
    "quota_exceeded": (
        "This key or address has had its share of the minute, or has too many requests "
        "running. `Retry-After` says when to come back."
    ),
    "request_timeout": "Headers or body did not arrive in time.",
    "resolution_too_high": (
        "More pixels, or a longer side, than the limit, read from the header; or more memory than "
        "all decoded pictures together may hold."
    ),
    "shutting_down": "The server's time for requests in flight is over.",
    "text_empty": "No text, or one without a visible character.",
    "text_too_long": "More characters than the limit.",
    "too_many_inputs": "More texts than the limit, or more jobs than the queue has places.",
    "too_many_scans": (
        "More scans in the JPEG than the limit, or than a picture of its size may have."
    ),
    "unauthorized": "A key is needed and missing or wrong.",
    "unsupported_encoding": (
        "The body is compressed; only `Content-Encoding: identity` is accepted."
    ),
    "unsupported_media_type": "The body's type is not one that the endpoint takes.",
    "worker_crashed": (
        "The process that worked on this request died. Others are not affected; try again."
    ),
}
"""By code, in Markdown."""

HEAD = "| code | status | title | when |\n|---|---|---|---|"


@dataclass(frozen=True, slots=True, order=True)
class ErrorCode:
    """One row of the table."""

    code: str
    status: int
    title: str
    when: str


def error_codes() -> list[ErrorCode]:
    """All of them by name, those of the exception tree and those of HTTP itself."""
    domain = {
        (error.code, status, error.title)
        for error, status in STATUS.items()
        if error is not PaddlepoolError and not issubclass(error, OperatorError)
    }
    of_http = {(code, status, HTTPStatus(status).phrase) for status, code in HTTP_CODES.items()}
    return [
        ErrorCode(code, status, title, WHEN[code])
        for code, status, title in sorted(domain | of_http)
    ]


def with_table(page: str) -> str:
    """The text of docs/errors.md with its table made anew."""
    rows = [f"| `{row.code}` | {row.status} | {row.title} | {row.when} |" for row in error_codes()]
    table = "\n".join([HEAD, *rows])
    return re.sub(rf"{re.escape(HEAD)}(\n\|.*)*", lambda _: table, page)


if __name__ == "__main__":
    PAGE = Path("docs/errors.md")
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")

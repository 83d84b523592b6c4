"""The API's own documentation: OpenAPI, Swagger UI from local files, and the list of errors."""

from __future__ import annotations

import html
import re
from string import Template

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from app.api.error_codes import ErrorCode, error_codes
from app.api.pages import PACKED, STATIC, add_files, read_asset

# Swagger UI styles its elements, draws icons from data: addresses and shows a reply that is a
# picture by a blob: address of its own; nothing else may load.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)

FILES = ("docs.css", "docs.js", "swagger-ui.css.gz", "swagger-ui-bundle.js.gz")
"""Files that the two pages load, below static/."""


def router() -> APIRouter:
    """/docs and what it loads. Nothing comes from another host."""
    routes = APIRouter(include_in_schema=False)
    routes.add_api_route("/openapi.json", openapi)
    routes.add_api_route("/docs", page)
    routes.add_api_route("/docs/errors", errors_page)
    add_files(
        routes, "docs", {name.removesuffix(PACKED): read_asset(STATIC / name) for name in FILES}
    )
    return routes


async def openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


async def page() -> Response:
    return _html((STATIC / "docs.html").read_text("utf-8"))


async def errors_page() -> Response:
    """The page that the `type` of a problem points to."""
    template = Template((STATIC / "errors.html").read_text("utf-8"))
    return _html(template.substitute(rows="\n".join(map(_row, error_codes()))))


def _row(row: ErrorCode) -> str:
    when = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(row.when))
    return (
        f'<tr id="{row.code}"><th scope="row"><a href="#{row.code}"><code>{row.code}</code></a>'
        f"<td>{row.status}<td>{html.escape(row.title)}<td>{when}"
    )


def _html(text: str) -> Response:
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

"""The API's own documentation: OpenAPI, Swagger UI from local files, and the list of errors."""

from __future__ import annotations

import gzip
import html
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from app.api.errors import HTTP_CODES, STATUS
from app.api.problems import documented
from app.contracts.errors import OperatorError, PaddlepoolError

STATIC = Path(__file__).parent / "static"
# Swagger UI styles its elements and draws icons from data: addresses; nothing else may load.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)


ASSETS = {
    "docs.js": ("docs.js", "text/javascript"),
    "swagger-ui.css": ("swagger-ui.css.gz", "text/css"),
    "swagger-ui-bundle.js": ("swagger-ui-bundle.js.gz", "text/javascript"),
}
"""Name in the address: file and media type."""


def router() -> APIRouter:
    """/docs and what it loads. Nothing comes from another host."""
    routes = APIRouter(include_in_schema=False)
    routes.add_api_route("/openapi.json", openapi)
    routes.add_api_route("/docs", page)
    routes.add_api_route("/docs/errors", errors_page)
    routes.add_api_route("/docs/{asset}", asset, responses=documented(404))
    return routes


async def openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


async def page() -> Response:
    return HTMLResponse(
        (STATIC / "docs.html").read_bytes(), headers={"Content-Security-Policy": POLICY}
    )


async def asset(asset: str, request: Request) -> Response:
    if asset not in ASSETS:
        raise HTTPException(404)
    file, media_type = ASSETS[asset]
    content = (STATIC / file).read_bytes()
    headers = {"Cache-Control": "public, max-age=86400"}
    if file.endswith(".gz"):
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            content = gzip.decompress(content)
    return Response(content, media_type=media_type, headers=headers)


async def errors_page() -> Response:
    """What the `type` of a problem points to."""
    rows = "".join(
        f'<tr id="{code}"><td><code>{code}</code><td>{status}<td>{html.escape(title)}'
        for code, status, title in error_codes()
    )
    return HTMLResponse(
        "<!doctype html><meta charset=utf-8><title>Paddlepool errors</title><h1>Errors</h1>"
        f"<table><tr><th>code<th>status<th>title{rows}</table>",
        headers={"Content-Security-Policy": POLICY},
    )


def error_codes() -> list[tuple[str, int, str]]:
    """Every `code` a client can receive, with its status and title."""
    domain = {
        (error.code, status, error.title)
        for error, status in STATUS.items()
        if error is not PaddlepoolError and not issubclass(error, OperatorError)
    }
    return sorted(
        domain | {(code, status, HTTPStatus(status).phrase) for status, code in HTTP_CODES.items()}
    )

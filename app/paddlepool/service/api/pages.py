"""The web pages, the API's documentation and their files; nothing is loaded from another host."""

import gzip
import hashlib
import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from paddlepool.service.api.errors import (
    ErrorCode,
    PaddleXError,
    Problem,
    ProtocolError,
    documented,
    error_codes,
)

STATIC = Path(__file__).parents[2] / "web"
PAGES: Mapping[str, str] = {"demo": "/", "comparison": "/compare"}
"""Maps a page's folder below web/ to the address of its index.html. Its other files are served
under the folder's name."""
SHARED = ("console", "samples")
"""Folders that every page may load from. `console` has the style, the modules and the header."""
FOLDERS = (*SHARED, *PAGES)
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
PACKED = ".gz"
"""Suffix of gzipped third-party files, such as `uplot.iife.min.js.gz`, next to their licences."""
ICON = "/favicon.ico"
"""Browsers request this icon for any document that names none, such as a JSON reply."""
HEADER = "<!-- header -->"
"""The placeholder that console/header.html replaces in a page."""
# Pages show samples and pictures they made themselves (blob:), and connect only to this server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent: its bytes, the gzipped bytes if they are smaller, and its ETag."""

    content: bytes
    packed: bytes | None
    media_type: str
    tag: str


@cache
def read_asset(file: Path) -> Asset:
    """Return a file as it is sent: `x.js.gz` as `x.js`, and index.html with the shared header.

    Each file is read once, for its first request: installed files do not change meanwhile.
    """
    content, packed = file.read_bytes(), None
    if file.suffix == PACKED:
        content, packed, file = gzip.decompress(content), content, file.with_suffix("")
    if file.name == "index.html":
        header = (STATIC / "console" / "header.html").read_text("utf-8")
        content = content.decode("utf-8").replace(HEADER, header).encode("utf-8")
    packed = packed or gzip.compress(content, mtime=0)
    return Asset(
        content=content,
        packed=packed if len(packed) < len(content) else None,
        media_type=MEDIA_TYPES[file.suffix],
        tag=f'W/"{hashlib.sha256(content).hexdigest()[:16]}"',
    )


def router() -> APIRouter:
    """Build the routes of the pages, of the API's documentation and of the files they load."""
    routes = APIRouter(include_in_schema=False)
    routes.add_api_route("/openapi.json", openapi)
    routes.add_api_route("/docs", docs_page)
    routes.add_api_route("/docs/errors", errors_page)
    _add_files(routes, "docs", map(STATIC.joinpath, DOCS_FILES))
    for folder in FOLDERS:
        files = _add_files(routes, folder, (STATIC / folder).iterdir())
        if folder in PAGES:
            policy = {"Content-Security-Policy": POLICY}
            _add(routes, PAGES[folder], files.pop("index.html"), policy)
        elif folder == "console":
            _add(routes, ICON, files["favicon.ico"], {})
    return routes


def _add(routes: APIRouter, address: str, file: Path, headers: Mapping[str, str]) -> None:
    async def page(request: Request) -> Response:
        return _reply(read_asset(file), request, headers)

    routes.add_api_route(address, page, responses={304: {}})


def _add_files(routes: APIRouter, folder: str, paths: Iterable[Path]) -> dict[str, Path]:
    """Add the route `/FOLDER/NAME` for files. Return the files that it serves, by NAME.

    They are files with a suffix in MEDIA_TYPES, and gzipped ones under their name without PACKED.
    Others are left out.
    """
    files = {
        path.name.removesuffix(PACKED): path
        for path in paths
        if path.suffix in (*MEDIA_TYPES, PACKED)
    }

    async def asset(asset: str, request: Request) -> Response:
        if asset not in files:
            raise HTTPException(404)
        return _reply(read_asset(files[asset]), request, {})

    routes.add_api_route(f"/{folder}/{{asset}}", asset, responses={304: {}, **documented(404)})
    return files


def _reply(asset: Asset, request: Request, headers: Mapping[str, str]) -> Response:
    """Build the reply: the file, or 304 if the browser's copy is current.

    `no-cache` makes the browser revalidate each file, so a newer server's page never runs with an
    older server's modules.
    """
    common = {"ETag": asset.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **headers}
    if asset.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=common)
    content = asset.content
    if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        content = asset.packed
        common["Content-Encoding"] = "gzip"
    return Response(content, media_type=asset.media_type, headers=common)


REFERENCE = "#/components/schemas/{model}"
KEY = "key"


def document(app: FastAPI, models: Iterable[type[BaseModel]], *, needs_key: bool) -> dict[str, Any]:
    """Return the OpenAPI document, which the first call builds.

    `models` are schemas that routes reference by name. With `needs_key`, the document says that
    requests need an API key.
    """
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        forms: list[type[BaseModel]] = [Problem, ProtocolError, PaddleXError, *models]
        _, named = models_json_schema(
            [(form, "validation") for form in forms], ref_template=REFERENCE
        )
        schemas |= named["$defs"]
        _complete(schema["paths"])
        if needs_key:
            schema["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{KEY: []}]
        app.openapi_schema = schema
    return app.openapi_schema


def title(router: APIRouter) -> None:
    """Set the summary of each route that has none: the first sentence of its description.

    Only the part before a semicolon is used. FastAPI would use the function's name.
    """
    for route in router.routes:
        if isinstance(route, APIRoute) and not route.summary:
            first = " ".join(route.description.partition("\n\n")[0].split())
            route.summary = first.partition(". ")[0].partition("; ")[0].rstrip(".") or None


def _complete(paths: dict[str, Any]) -> None:
    """Give each path variable an example, and remove the 422 replies that FastAPI has added."""
    for path, operations in paths.items():
        # Only a model can be loaded or has a sample; on other paths the example is a task.
        of_model = path.startswith("/v2/repository/") or path.endswith("/sample")
        model = "mnist" if of_model else "sentiment"
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422", "")):
                del operation["responses"]["422"]
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["example"] = {"model": model, "version": 1}[parameter["name"]]


# Swagger UI uses inline styles, icons in data: URLs, and blob: URLs for replies that are pictures.
# Nothing else may load.
DOCS_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
}

DOCS_FILES = (
    *("docs.css", "docs.js", "errors.js", "chinese.json"),
    *("swagger-ui.css.gz", "swagger-ui-bundle.js.gz"),
)
"""Files below web/ that the pages /docs and /docs/errors load."""


async def openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


async def docs_page() -> Response:
    return HTMLResponse((STATIC / "docs.html").read_text("utf-8"), headers=DOCS_HEADERS)


async def errors_page() -> Response:
    """Reply with the list of errors, to which the `type` of a problem points."""
    template = Template((STATIC / "errors.html").read_text("utf-8"))
    page = template.substitute(rows="\n".join(map(_row, error_codes())))
    return HTMLResponse(page, headers=DOCS_HEADERS)


def _row(row: ErrorCode) -> str:
    when = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(row.when))
    return (
        f'<tr id="{row.code}"><th scope="row"><a href="#{row.code}"><code>{row.code}</code></a>'
        f"<td>{row.status}<td>{html.escape(row.title)}<td>{when}"
    )

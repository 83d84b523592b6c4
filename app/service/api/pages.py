"""GET /: the web pages and the files they load. All files are local and need no build step."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.service.api.problems import documented

STATIC = Path(__file__).parent / "static"
PAGES: Mapping[str, str] = {"demo": "/", "comparison": "/compare"}
"""Maps a page's folder below static/ to the address of its index.html. Its other files are served
under the folder's name."""
SHARED = ("console", "samples")
"""Folders that every page may load from: style, modules and the header; sample pictures."""
FOLDERS = (*SHARED, *PAGES)
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
PACKED = ".gz"
"""Suffix of gzipped third-party files, such as `uplot.iife.min.js.gz`; licences are beside them."""
ICON = "/favicon.ico"
"""Browsers request the icon here for an address that names no icon, such as a JSON reply."""
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
    """Read a file once: installed files do not change while the server runs."""
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
    routes = APIRouter(include_in_schema=False)
    for folder in FOLDERS:
        files = {
            file.name.removesuffix(PACKED): read_asset(file)
            for file in (STATIC / folder).iterdir()
            if file.suffix in (*MEDIA_TYPES, PACKED)
        }
        if folder in PAGES:
            policy = {"Content-Security-Policy": POLICY}
            _add(routes, PAGES[folder], files.pop("index.html"), policy)
        elif folder == "console":
            _add(routes, ICON, files["favicon.ico"], {})
        add_files(routes, folder, files)
    return routes


def _add(routes: APIRouter, address: str, asset: Asset, headers: Mapping[str, str]) -> None:
    async def page(request: Request) -> Response:
        return _reply(asset, request, headers)

    routes.add_api_route(address, page, responses={304: {}})


def add_files(routes: APIRouter, folder: str, files: Mapping[str, Asset]) -> None:
    """Add a route that serves each of `files` by its name below the folder's address."""

    async def asset(asset: str, request: Request) -> Response:
        if asset not in files:
            raise HTTPException(404)
        return _reply(files[asset], request, {})

    routes.add_api_route(f"/{folder}/{{asset}}", asset, responses={304: {}, **documented(404)})


def _reply(asset: Asset, request: Request, headers: Mapping[str, str]) -> Response:
    """Send the file, or 304 if the browser's copy is current.

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

"""GET /: the demo page and its three files, all local."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.problems import documented

FILES = Path(__file__).parent / "static" / "demo"
MEDIA_TYPES = {"demo.css": "text/css", "demo.js": "text/javascript", "icon.svg": "image/svg+xml"}
# The page shows pictures it made itself (blob:) and talks to this server alone.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    routes.add_api_route("/", page)
    routes.add_api_route("/demo/{asset}", asset, responses=documented(404))
    return routes


async def page() -> Response:
    return Response(
        (FILES / "index.html").read_bytes(),
        media_type="text/html",
        headers={"Content-Security-Policy": POLICY},
    )


async def asset(asset: str) -> Response:
    if asset not in MEDIA_TYPES:
        raise HTTPException(404)
    return Response((FILES / asset).read_bytes(), media_type=MEDIA_TYPES[asset])

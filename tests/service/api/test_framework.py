"""What the application shares with FastAPI and Starlette, beyond what they document."""

import asyncio
from typing import cast

import pytest
from fastapi import APIRouter, UploadFile
from fastapi.routing import APIRoute
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from paddlepool.service.api import info
from paddlepool.service.api.routes import RouteTable
from paddlepool.service.api.v2 import infer, models
from tests.service.api.fakes import Client, make_app, make_settings


def test_an_embedding_program_can_add_middleware() -> None:
    """It is outermost, and sees the replies of all other layers."""

    async def add_header(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-seen"] = request.url.path
        return response

    app = make_app()
    app.add_middleware(BaseHTTPMiddleware, dispatch=add_header)
    for path in ("/v2/health/live", "/nothing"):
        assert Client(app).get(path).headers["x-seen"] == path


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/info", {}),
        ("/v2", {}),
        ("/v2/models/stats", {}),
        ("/v2/models/a%2F/", {"model": "a%2F"}),
        ("/v2/models/m1", {"model": "m1"}),
        ("/v2/models/m1/versions/2/infer", {"model": "m1", "version": "2"}),
        ("/v2/systemsharedmemory/region/a/status", {"rest": "region/a/status"}),
        ("/v2/models/m1/", None),
        ("/", None),
    ],
)
def test_the_route_table_finds_the_route_that_starlette_finds(
    path: str, parameters: dict[str, str] | None
) -> None:
    """The table uses the pattern that Starlette compiled from the route's path."""
    routers = [infer.router(make_settings()), info.router(card=()), models.router()]
    table = RouteTable([(router, None) for router in routers], default_max_body=1)
    routes = [cast(APIRoute, route) for router in routers for route in router.routes]
    for method in ("GET", "POST"):
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        matches = [(route, *route.matches(scope)) for route in routes]
        full = [(route, child) for route, match, child in matches if match is Match.FULL]
        entry = table.find(path, method)
        if not full:
            assert entry is None or method not in entry.methods
            continue
        [(route, child), *_] = full
        assert entry is not None
        assert (entry.template, child["path_params"]) == (route.path, parameters)
        match_of_table = entry.pattern.match(path)
        assert match_of_table is not None
        assert match_of_table.groupdict() == parameters


def test_fastapi_closes_the_files_of_its_own_endpoints() -> None:
    """Its handlers leave them to an exit stack, which the route table supplies."""
    files: list[UploadFile] = []

    async def upload(file: UploadFile) -> int:
        files.append(file)
        await asyncio.sleep(0)
        return len(await file.read())

    router = APIRouter()
    router.add_api_route("/upload", upload, methods=["POST"])
    response = Client(make_app(router)).post("/upload", files={"file": b"abc"})
    assert response.json() == 3
    assert files[0].file.closed

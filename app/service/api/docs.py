"""The API's documentation: OpenAPI, Swagger UI from local files, and the list of errors."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from string import Template
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import HTMLResponse, JSONResponse, Response

from app.service.api.errors import ErrorCode, error_codes
from app.service.api.pages import PACKED, STATIC, add_files, read_asset
from app.service.api.problems import Problem, ProtocolError

REFERENCE = "#/components/schemas/{model}"
KEY = "key"


def document(app: FastAPI, models: Iterable[type[BaseModel]], *, needs_key: bool) -> dict[str, Any]:
    """Build the OpenAPI document once: every operation with every status it can return.

    `models` are the error models of the doors.
    """
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        forms: list[type[BaseModel]] = [Problem, ProtocolError, *models]
        for model in forms:
            schemas[model.__name__] = model.model_json_schema(ref_template=REFERENCE)
        _hoist(schema, schemas)
        _drop_undeclared(schema["paths"])
        _fill_paths(schema["paths"])
        if needs_key:
            schema["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{KEY: []}]
        app.openapi_schema = schema
    return app.openapi_schema


def title(router: APIRouter) -> None:
    """Use the first sentence of each route's description as its title, not the function's name."""
    for route in router.routes:
        if isinstance(route, APIRoute) and not route.summary:
            first = " ".join(route.description.partition("\n\n")[0].split())
            route.summary = first.partition(". ")[0].partition("; ")[0].rstrip(".") or None


def _drop_undeclared(paths: dict[str, Any]) -> None:
    """Drop the 422 that FastAPI adds on its own to routes whose error form declares none."""
    for operations in paths.values():
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422", "")):
                del operation["responses"]["422"]


def _fill_paths(paths: dict[str, Any]) -> None:
    """Give each path variable an example that the API page can send.

    Model control gets a model as its example, because tasks cannot be loaded.
    """
    for path, operations in paths.items():
        model = "mnist" if path.startswith("/v2/repository/") else "sentiment"
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["example"] = {"model": model, "version": 1}[parameter["name"]]


def _hoist(node: Any, schemas: dict[str, Any]) -> None:
    """Move `$defs` of nested schemas into `schemas`, and point their references there."""
    if isinstance(node, dict):
        schemas |= node.pop("$defs", {})
        reference = node.get("$ref", "")
        if reference.startswith("#/$defs/"):
            node["$ref"] = REFERENCE.format(model=reference.removeprefix("#/$defs/"))
    for child in list(node.values() if isinstance(node, dict) else node):
        if isinstance(child, dict | list):
            _hoist(child, schemas)


# Swagger UI uses inline styles, icons in data: URLs, and blob: URLs for replies that are pictures.
# Nothing else may load.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)

FILES = ("docs.css", "docs.js", "swagger-ui.css.gz", "swagger-ui-bundle.js.gz")
"""Files below static/ that the two pages load."""


def router() -> APIRouter:
    """Routes of /docs and the files it loads. Nothing comes from another host."""
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
    """The list of errors, to which the `type` of a problem points."""
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

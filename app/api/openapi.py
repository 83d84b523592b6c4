"""The OpenAPI document, which programs read and /docs shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from app.api.problems import Problem, ProtocolError

REFERENCE = "#/components/schemas/{model}"
KEY = "key"


def document(app: FastAPI, models: Iterable[type[BaseModel]], *, needs_key: bool) -> dict[str, Any]:
    """Every operation with every status it can answer with; made once. `models` are the errors of
    other forms than ours."""
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
        if needs_key:
            schema["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{KEY: []}]
        app.openapi_schema = schema
    return app.openapi_schema


def title(router: APIRouter) -> None:
    """Title each route by the first sentence of what it does: a function's name is no title."""
    for route in router.routes:
        if isinstance(route, APIRoute) and not route.summary:
            first = " ".join(route.description.partition("\n\n")[0].split())
            route.summary = first.partition(". ")[0].partition("; ")[0].rstrip(".") or None


def _drop_undeclared(paths: dict[str, Any]) -> None:
    """FastAPI's own 422, where a form of errors has no such status and declares none."""
    for operations in paths.values():
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422", "")):
                del operation["responses"]["422"]


def _hoist(node: Any, schemas: dict[str, Any]) -> None:
    """Move the definitions that a nested schema brought along to where references look."""
    if isinstance(node, dict):
        schemas |= node.pop("$defs", {})
        reference = node.get("$ref", "")
        if reference.startswith("#/$defs/"):
            node["$ref"] = REFERENCE.format(model=reference.removeprefix("#/$defs/"))
    for child in list(node.values() if isinstance(node, dict) else node):
        if isinstance(child, dict | list):
            _hoist(child, schemas)

"""The ASGI application: every router, every layer around them, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from app import __version__
from app.api import demo, docs, errors, info, metrics
from app.api.middleware.access import Access
from app.api.middleware.disconnect import Disconnect
from app.api.middleware.keys import Keys
from app.api.middleware.limits import BodyLimits
from app.api.problems import ANY_STATUSES, TASK_STATUSES, Problem, ProtocolError, documented
from app.api.routes import RouteTable
from app.api.services import Services
from app.api.v2 import config, health, infer, metadata, repository, stats
from app.api.v2.tensors import BINARY_HEADER
from app.api.v2.version_routes import MODEL, VERSION

DESCRIPTION = "A model server around Paddle Inference: background matting and emotions of texts."
REFERENCE = "#/components/schemas/{model}"
EXPOSED = (
    "X-Request-ID",
    "X-Model",
    "X-Predictor",
    "Server-Timing",
    "X-Width",
    "X-Height",
    "X-Foreground-Top",
    "X-Foreground-Left",
    "X-Foreground-Width",
    "X-Foreground-Height",
    "X-Truncated",
    "Content-Disposition",
    "Retry-After",
    BINARY_HEADER,
)
"""What a page of an allowed origin may read of a reply, besides what every page may."""

ACCEPTED = ("Authorization", "Content-Type", "X-Api-Key", "X-Request-ID", BINARY_HEADER)
"""What it may send, besides what every page may."""


@dataclass(frozen=True, slots=True)
class _Mount:
    """A router, what all its routes answer with besides ANY_STATUSES, and the shape of errors."""

    router: APIRouter
    statuses: tuple[int, ...] = ()
    protocol: bool = False


def build_application(
    services: Services,
    *,
    keys: Sequence[bytes],
    tasks: Iterable[APIRouter],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> FastAPI:
    """Everything HTTP around `services`. Where there are `keys`, requests must carry one."""
    settings = services.settings
    # Tasks first: routes are tried in order, and these are the ones whose time counts.
    mounts = [
        *(_Mount(router, TASK_STATUSES) for router in tasks),
        *(_Mount(module.router()) for module in (info, metrics, docs, demo)),
        *(_Mount(module.router(), protocol=True) for module in (health, stats, metadata, config)),
        *(_Mount(module.router(), protocol=True) for module in (infer, repository)),
    ]
    routes = RouteTable(
        [(mount.router, mount.statuses) for mount in mounts],
        max_body={
            "/segment": settings.segment_max_bytes,
            "/sentiment": settings.sentiment_max_bytes,
            f"{MODEL}/infer": settings.infer_max_bytes,
            f"{VERSION}/infer": settings.infer_max_bytes,
        },
        default_max_body=settings.body_max_bytes,
    )
    for route in routes.routes:
        services.metrics.expect_route(route.template, route.methods, route.statuses)
    app = FastAPI(
        title="Paddlepool",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=_layers(services, routes, keys),
    )
    app.state.paddlepool = services
    errors.install(app)
    for mount in mounts:
        answers = documented(*ANY_STATUSES, *mount.statuses, protocol=mount.protocol)
        app.include_router(mount.router, responses=answers)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own way
    return app


def _layers(services: Services, routes: RouteTable, keys: Sequence[bytes]) -> list[Middleware]:
    """Outermost first. All are plain ASGI: a layer that buffers would hide a disconnect."""
    settings = services.settings
    layers = [
        Middleware(Access, routes=routes, metrics=services.metrics, lifecycle=services.lifecycle)
    ]
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=ACCEPTED,
                expose_headers=EXPOSED,
            )
        )
    admin_key = settings.admin_key
    return [
        *layers,
        Middleware(Disconnect),
        Middleware(
            Keys,
            keys=keys,
            admin_key=None if admin_key is None else admin_key.get_secret_value().encode(),
            health_needs_key=settings.health_needs_key,
            metrics_needs_key=settings.metrics_needs_key,
        ),
        Middleware(BodyLimits, routes=routes),
    ]


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for model in (Problem, ProtocolError):
            schemas[model.__name__] = model.model_json_schema(ref_template=REFERENCE)
        _hoist(schema, schemas)
        app.openapi_schema = schema
    return app.openapi_schema


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

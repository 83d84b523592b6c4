"""The ASGI application: its routers, the middleware around them, and its OpenAPI document."""

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from paddlepool import __version__
from paddlepool.compat import hugging_face, paddlex, paddlex_classify, rembg, removebg, tei
from paddlepool.compat.api import CompatibleApi
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.resources import memory_limit
from paddlepool.service.api import compare, info, pages
from paddlepool.service.api.errors import (
    ANY_STATUSES,
    PROTOCOL,
    TASK_STATUSES,
    ErrorForm,
    documented,
)
from paddlepool.service.api.middleware.keys import WRONG_KEYS, WRONG_KEYS_PER_MINUTE, KeyRules
from paddlepool.service.api.middleware.layer import (
    REPLICA,
    TRACE_ID,
    Admission,
    RequestLog,
    redirect_agents,
)
from paddlepool.service.api.middleware.limits import Budget, Gates, TokenBuckets
from paddlepool.service.api.routes import RouteTable
from paddlepool.service.api.services import Services
from paddlepool.service.api.v2 import canary, infer, models
from paddlepool.service.api.v2.tensors import BINARY_HEADER
from paddlepool.settings.server import API_NAMES, PREFIX, PluginSettings, Settings
from paddlepool.tasks.plugins import OWN, declarations, load_declared
from paddlepool.tasks.task import Task

DESCRIPTION = (
    "A model server around Paddle Inference: an endpoint for each task, and the Open Inference "
    "Protocol (v2) for tensors. The parameter `instance_group` and its alias `predictor` name one "
    "configuration of a model and the processes that run it."
)
EXPOSED = (
    "X-Request-ID",
    TRACE_ID,
    REPLICA,
    "X-Model",
    "X-Instance-Group",
    "X-Predictor",
    "Server-Timing",
    "Retry-After",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    BINARY_HEADER,
)
"""Reply headers that a page of an allowed origin may read. Tasks and compatible APIs add theirs."""

COMPATIBLE_APIS: tuple[CompatibleApi, ...] = (
    rembg.API,
    removebg.API,
    tei.API,
    hugging_face.BOTH,
    hugging_face.TEXTS,
    hugging_face.PICTURES,
    paddlex.API,
    paddlex_classify.API,
)

COMPATIBLE_APIS_VARIABLE = f"{PREFIX}COMPATIBLE_APIS"

BODY_SHARE = 4
"""By default, all request bodies together may use 1 / BODY_SHARE of the memory, and all unread
replies together as much again."""

ACCEPTED = (
    "Authorization",
    "Content-Type",
    "X-Api-Key",
    "X-Request-ID",
    "Traceparent",
    "Tracestate",
    BINARY_HEADER,
)
"""Request headers that a page of an allowed origin may send."""


def build_application(
    services: Services,
    *,
    keys: Sequence[bytes],
    tasks: Iterable[Task],
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    compatible_apis: Sequence[CompatibleApi] = (),
) -> FastAPI:
    """Build the HTTP application around `services`.

    If there are `keys`, requests need one, except on the paths that KeyRules leaves open.
    `app.state` has `services` as `paddlepool`, and `gates`, which gRPC shares. Raises ConfigError
    if two endpoints have the same method and path.
    """
    settings, tasks = services.settings, tuple(tasks)
    card = [name for task in tasks for name in task.card]
    extra = [api.info for api in compatible_apis if api.info is not None]
    # Each router with the statuses of its routes besides ANY_STATUSES, and the form of its errors.
    # Routes are tried in order: inference routes come first because their latency matters.
    routers: list[tuple[APIRouter, tuple[int, ...], ErrorForm | None]] = [
        *((task.endpoints(settings), TASK_STATUSES, None) for task in tasks),
        (infer.router(settings), (), PROTOCOL),
        *((api.routes(settings), TASK_STATUSES, api.errors) for api in compatible_apis),
        (info.router(card=card, extra=extra), (), None),
        *((module.router(), (), None) for module in (compare, pages)),
        (models.router(), (), PROTOCOL),
        (canary.router(), (), PROTOCOL),
    ]
    routes = RouteTable(
        [(router, errors) for router, _, errors in routers],
        default_max_body=settings.body_max_bytes,
    )
    for route in routes.routes:
        services.metrics.expect_route(route.template)
    gates = build_gates(settings, keys)
    redirects = {
        path: (target, api.agents) for api in compatible_apis for path, target in api.paths.items()
    }
    # The outermost first. All are plain ASGI, because one that buffers would hide a disconnect.
    layers = [Middleware(redirect_agents, redirects)] if redirects else []
    layers.append(Middleware(RequestLog, services=services, routes=routes, gates=gates))
    if settings.trusted_proxies:
        layers.append(Middleware(ProxyHeadersMiddleware, trusted_hosts=settings.proxies()))
    if settings.cors_origins:
        exposed = {name for task in tasks for name in task.headers}
        exposed |= {name for api in compatible_apis for name in api.headers}
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=ACCEPTED,
                expose_headers=[*EXPOSED, *sorted(exposed)],
            )
        )
    layers.append(Middleware(Admission, settings=settings, routes=routes, gates=gates))
    app = FastAPI(
        title="Paddlepool",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # FastAPI's own spans would duplicate ours and contain the client's path and query.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        lifespan=lifespan,
        middleware=layers,
    )
    app.state.paddlepool = services
    app.state.gates = gates
    for router, statuses, errors in routers:
        pages.title(router)
        app.include_router(router, responses=documented(*ANY_STATUSES, *statuses, form=errors))
    referenced: list[type[BaseModel]] = [
        infer.InferRequest,
        *(api.errors.model for api in compatible_apis),
    ]
    # The documented way to replace FastAPI's OpenAPI document.
    app.openapi = partial(  # type: ignore[method-assign]
        pages.document, app, referenced, needs_key=bool(keys)
    )
    return app


def enabled_apis(settings: PluginSettings, tasks: Container[str]) -> tuple[CompatibleApi, ...]:
    """Return the enabled compatible APIs: the server's own, then those of other packages.

    If PADDLEPOOL_COMPATIBLE_APIS is unset, all are enabled. The server's own APIs are left out if
    `tasks` lacks their task. Raises ConfigError if the setting names an API that does not exist, if
    two APIs have the same name, or if an enabled one of another package cannot be loaded or names a
    task that does not exist.
    """
    words = [word.partition("=") for word in settings.compatible_apis]
    declared = declarations(
        "paddlepool.compatible_apis",
        own=dict.fromkeys(API_NAMES, ""),
        configured={name: module for name, _, module in words if module},
        variable=COMPATIBLE_APIS_VARIABLE,
    )
    names = [declaration.name for declaration in declared]
    enabled = [name for name, _, _ in words]
    if "compatible_apis" not in settings.model_fields_set:
        enabled = names
    if unknown := [name for name in enabled if name not in names]:
        raise ConfigError(
            f"{COMPATIBLE_APIS_VARIABLE}: expected {', '.join(names)}, received {unknown[0]!r}"
        )
    apis = [api for api in COMPATIBLE_APIS if api.name in enabled and api.task in tasks]
    for declaration in declared:
        if declaration.name in enabled and declaration.origin != OWN:
            apis.append(api := load_declared(declaration, "API", CompatibleApi))
            if api.task not in tasks:
                raise ConfigError(
                    f"{declaration.name!r} of {declaration.origin}: there is no task {api.task!r}"
                )
    return tuple(apis)


def build_gates(settings: Settings, keys: Sequence[bytes]) -> Gates:
    """Build the checks of keys, quotas and body memory, shared by HTTP and gRPC."""
    concurrent = settings.quota_concurrent_requests
    quotas = {
        "requests": settings.quota_requests_per_minute,
        "pixels": settings.quota_pixels_per_minute,
        "texts": settings.quota_texts_per_minute,
    }
    per_minute = {what: limit for what, limit in quotas.items() if limit}
    return Gates(
        keys=KeyRules(settings, keys, TokenBuckets({WRONG_KEYS: WRONG_KEYS_PER_MINUTE}).of),
        buckets=TokenBuckets(per_minute, concurrent) if per_minute or concurrent else None,
        bodies=Budget(
            settings.body_memory_bytes or memory_limit() // BODY_SHARE,
            what="bytes of request bodies",
        ),
    )

"""Liveness and readiness of the server and of each model. No model is run."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from app.contracts.errors import ModelNotReady
from app.service.api.problems import PROTOCOL, documented
from app.service.api.routes import TaskRoute
from app.service.api.services import Services, ServicesDep
from app.service.api.v2.metadata import add_by_version, check_ready, task_named


def router() -> APIRouter:
    """Build the health routes of the Open Inference Protocol."""
    routes = APIRouter(tags=["health"])
    unready = documented(503, form=PROTOCOL)
    for path, endpoint, operation, responses in (
        ("/v2/health/live", live, "serverLive", None),
        ("/v2/health/ready", ready, "serverReady", unready),
    ):
        routes.add_api_route(
            path,
            endpoint,
            operation_id=operation,
            responses=responses,
            route_class_override=TaskRoute,
        )
    missing = documented(404, 503, form=PROTOCOL)
    add_by_version(
        routes, "/ready", model_ready, version_ready, operation="Ready", responses=missing
    )
    return routes


async def live() -> Response:
    """200 while the process answers, regardless of its models."""
    return JSONResponse({"live": True})


async def ready(services: ServicesDep) -> Response:
    """200 if every model of the repository is ready and the server is not stopping."""
    check_server(services)
    return JSONResponse({"ready": True})


async def model_ready(model: str, services: ServicesDep) -> Response:
    """200 if the model is ready."""
    check_model(services, model, None)
    return JSONResponse({"name": model, "ready": True})


async def version_ready(model: str, version: int, services: ServicesDep) -> Response:
    """200 if this version of the model is ready."""
    check_model(services, model, version)
    return JSONResponse({"name": model, "ready": True})


def check_server(services: Services) -> None:
    """Raise ModelNotReady if the server should not receive requests."""
    if services.lifecycle.draining:
        raise ModelNotReady("The server is stopping.")
    if not services.registry.wanted():
        raise ModelNotReady(
            "No model is served: the repository is empty, was not read yet, or all were unloaded."
        )
    if not services.registry.ready():
        raise ModelNotReady("Some models of the repository are not ready; /info says why.")


def check_model(services: Services, model: str, version: int | None) -> None:
    """Raise ModelNotReady or ModelNotFound if the model or task cannot answer."""
    if task_named(services, model, version) is not None:
        check_ready(services, model)
        return
    with services.registry.lease(model, version) as served:
        if not served.ready():
            raise ModelNotReady("The model's predictors are not running.")

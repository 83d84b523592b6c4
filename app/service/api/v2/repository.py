"""Model control: list the repository, load and unload models.

`app.service.api.middleware.keys` checks the admin key.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from app.contracts import errors
from app.service.api.problems import PROTOCOL, documented
from app.service.api.services import Services, ServicesDep
from app.service.api.uploads import json_object
from app.service.api.v2.metadata import VERSION, check_model, task_named


class IndexEntry(BaseModel):
    """One version in the repository or in memory; `version` is empty if none is published."""

    name: str
    version: str
    state: str = Field(description="LOADING, READY or UNAVAILABLE.")
    reason: str = Field(description="Why it is not ready, or why its last load failed.")


def router() -> APIRouter:
    routes = APIRouter(tags=["model control"])
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    for path, endpoint, operation, statuses in (
        ("/v2/repository/index", index, "repositoryIndex", ()),
        ("/v2/repository/models/{model}/load", load, "modelLoad", (404, 409)),
        ("/v2/repository/models/{model}/unload", unload, "modelUnload", (404,)),
    ):
        routes.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            operation_id=operation,
            responses=documented(403, *statuses, form=PROTOCOL),
            openapi_extra={"requestBody": body},
        )
    return routes


async def index(request: Request, services: ServicesDep) -> list[IndexEntry]:
    """Every version with its state. With `{"ready": true}`, only those that are ready."""
    asked = await _document(request, known="ready")
    only_ready = asked.get("ready", False)
    if not isinstance(only_ready, bool):
        raise errors.InvalidParameter("ready must be true or false")
    return await listed_versions(services, only_ready=only_ready)


async def listed_versions(services: Services, *, only_ready: bool) -> list[IndexEntry]:
    """Every version of every model, then the tasks."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(services.operations, services.registry.index)
    entries = [
        IndexEntry(
            name=status.name,
            version="" if status.version is None else str(status.version),
            state=status.state,
            reason=status.reason,
        )
        for status in found
    ]
    for name in services.task_tensors:
        if task_named(services, name) is None:
            continue
        entry = IndexEntry(name=name, version=str(VERSION), state="READY", reason="")
        try:
            check_model(services, name)
        except errors.ModelNotReady as error:
            entry.state, entry.reason = "UNAVAILABLE", error.message
        except errors.ModelNotFound:
            continue
        entries.append(entry)
    return [entry for entry in entries if entry.state == "READY" or not only_ready]


async def load(model: str, request: Request, services: ServicesDep) -> Response:
    """Reload the model by its version policy; answers when the load has succeeded or failed.

    The previous versions keep serving until then, and also after a failure.
    """
    await load_model(services, model, await _parameters(request))
    return Response()


async def load_model(services: Services, model: str, parameters: Mapping[str, Any]) -> None:
    """Load a model. Raises ModelNotFound, ModelLoadFailed, and InvalidParameter for parameters."""
    if parameters:
        raise errors.InvalidParameter(
            "a model is loaded from the repository; its configuration and files cannot be "
            "overridden, so parameters must be empty"
        )
    try:
        await services.registry.load(model)
    except errors.OperatorError as error:
        raise errors.ModelLoadFailed(error.message) from error


async def unload(model: str, request: Request, services: ServicesDep) -> Response:
    """Stop serving the model; answers when its requests have ended."""
    await unload_model(services, model, await _parameters(request))
    return Response()


async def unload_model(services: Services, model: str, parameters: Mapping[str, Any]) -> None:
    """Unload a model. Raises InvalidParameter and ModelNotFound."""
    # No model depends on another, so unload_dependents has no effect.
    dependents = parameters.get("unload_dependents")
    if set(parameters) - {"unload_dependents"} or not isinstance(dependents, bool | None):
        raise errors.InvalidParameter("the only parameter is unload_dependents: true or false")
    await services.registry.unload(model)


async def _document(request: Request, *, known: str) -> dict[str, Any]:
    """Parse the body, which may be empty and of any type, as an object that has only `known`."""
    body = await request.body()
    asked = json_object(body) if body else {}
    if set(asked) - {known}:
        raise errors.InvalidParameter(f"the body must be a JSON object that has only: {known}")
    return {name: value for name, value in asked.items() if value is not None}


async def _parameters(request: Request) -> dict[str, Any]:
    asked = await _document(request, known="parameters")
    parameters = asked.get("parameters", {})
    if not isinstance(parameters, dict):
        raise errors.InvalidParameter("parameters must be a JSON object")
    return parameters

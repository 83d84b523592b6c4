"""The endpoints under /v2 besides inference: health, metadata, statistics and model control.

Configuration and statistics have the form that Triton's tools read. A task's whole pipeline appears
as an ensemble of one step. If a model that takes tensors has a task's name, the name means the
model, and the task has only its own endpoint. `middleware.keys` checks the admin key.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from paddlepool import __version__
from paddlepool.contracts import errors
from paddlepool.contracts.tensors import STRINGS, TaskTensors, TensorSpec
from paddlepool.engine.pool.group import Duration, Stages
from paddlepool.engine.registry.model import ServedModel
from paddlepool.models.repository.config import InstanceGroup, VersionPolicy
from paddlepool.models.repository.layout import VERSION as VERSION_NAME
from paddlepool.service.api.errors import PROTOCOL, documented
from paddlepool.service.api.routes import TaskRoute
from paddlepool.service.api.services import Services, ServicesDep, services_of
from paddlepool.service.api.uploads import json_object
from paddlepool.service.api.v2.tensors import NAMES

T = TypeVar("T")

log = logging.getLogger(__name__)

VERSION = 1  # the only version of a task
PLATFORM = "ensemble"
PLATFORMS = {"paddle": "paddle_inference", "onnx": "onnxruntime_onnx"}
"""Triton's names for the formats of a version's reference program."""
EXTENSIONS = (
    "binary_tensor_data", "classification", "model_configuration", "schedule_policy", "statistics",
)  # fmt: skip
CONTROL_EXTENSIONS = ("model_repository", "model_repository(unload_dependents)")


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """Name, type and shape of a tensor. `shape` has -1 for a variable size. In the tensors of a
    batched model, the first axis is the batch."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class IndexEntry(BaseModel):
    """A task, or a version on disk or in memory; `version` is empty if none is published."""

    name: str
    version: str
    state: str = Field(description="LOADING, READY or UNAVAILABLE.")
    reason: str = Field(description="Why it is not ready, or why its last load failed.")


def router() -> APIRouter:
    """Build the routes for health, metadata, configuration, statistics and model control."""
    routes = APIRouter()
    health: dict[str, Any] = {"tags": ["health"], "route_class_override": TaskRoute}
    routes.add_api_route("/v2/health/live", live, operation_id="serverLive", **health)
    health["responses"] = documented(503, form=PROTOCOL)
    routes.add_api_route("/v2/health/ready", ready, operation_id="serverReady", **health)
    missing = documented(404, 503, form=PROTOCOL)
    routes.add_api_route("/v2", server_metadata, operation_id="serverMetadata", tags=["v2"])
    # Added first: otherwise the route of one model would take `stats` as a model's name.
    routes.add_api_route("/v2/models/stats", all_stats, operation_id="statistics", tags=["v2"])
    for tail, of, operation, tag, one in (
        ("/ready", ready_model, "Ready", "health", "200 if this version of the model is ready."),
        ("/stats", stats_of, "Statistics", "v2", "Statistics of one version."),
        ("", metadata_of, "Metadata", "v2", "Inputs and outputs of one version."),
        ("/config", config_of, "Config", "v2", "Configuration of one version."),
    ):
        options: dict[str, Any] = {"operation": operation, "tags": [tag], "responses": missing}
        add_by_version(routes, tail, _read(of), one=one, **options)
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
            tags=["model control"],
            responses=documented(403, *statuses, form=PROTOCOL),
            openapi_extra={"requestBody": body},
        )
    return routes


ModelHandler = Callable[[Request, str, int | None], Awaitable[Any]]
"""An endpoint: takes a request, a model and a version, which is None if the path has none."""


def add_by_version(
    routes: APIRouter, tail: str, handler: ModelHandler, *, one: str, operation: str, **options: Any
) -> None:
    """Add a route for a model and one for its version, with `tail` after their paths.

    The docstring of `handler` describes the route for a model, `one` the route for its version.
    A version that is no positive integer gets ModelNotFound.
    """

    async def of_model(model: str, request: Request) -> Any:
        return await handler(request, model, None)

    async def of_version(model: str, version: str, request: Request) -> Any:
        if VERSION_NAME.fullmatch(version) is None:
            raise errors.ModelNotFound("a version is a positive integer without leading zeros")
        return await handler(request, model, int(version))

    reply = handler.__annotations__["return"]
    for path, endpoint, kind, description in (
        ("/v2/models/{model}", of_model, "model", handler.__doc__),
        ("/v2/models/{model}/versions/{version}", of_version, "modelVersion", one),
    ):
        routes.add_api_route(
            path + tail,
            endpoint,
            operation_id=kind + operation,
            description=description,
            response_model=None if reply is Response else reply,
            **options,
        )


def _read(of: Callable[[Services, str, int | None], Any]) -> ModelHandler:
    @wraps(of)
    async def handler(request: Request, model: str, version: int | None) -> Any:
        return of(services_of(request), model, version)

    return handler


async def live() -> Response:
    """200 while the process answers, regardless of its models."""
    return JSONResponse({"live": True})


async def ready(services: ServicesDep) -> Response:
    """200 if the server has models, all are ready, and it has neither failed nor begun to stop."""
    check_server(services)
    return JSONResponse({"ready": True})


def ready_model(services: Services, model: str, version: int | None) -> Response:
    """200 if the model is ready."""
    check_model(services, model, version)
    return JSONResponse({"name": model, "ready": True})


def check_server(services: Services) -> None:
    """Raise ModelNotReady if the server stops, failed, has no model or one that is not ready."""
    if services.lifecycle.draining:
        raise errors.ModelNotReady("The server is stopping.")
    if services.lifecycle.failure:
        raise errors.ModelNotReady(services.lifecycle.failure)
    if not services.registry.wanted():
        raise errors.ModelNotReady(
            "No model is served: the repository is empty, was not read yet, or all were unloaded."
        )
    if not services.registry.ready():
        raise errors.ModelNotReady("Some models of the repository are not ready; /info says why.")


def check_model(services: Services, name: str, version: int | None = None) -> None:
    """Raise ModelNotReady or ModelNotFound if the model, or the task `name`, cannot answer."""
    what = "The model's predictors"
    if task_named(services, name, version) is not None:
        name, version = services.dataplane.default_model(name), None
        what = "The predictors of the task's model"
    if (composed := services.registry.find_composed(name, version)) is not None:
        if not composed.ready():
            raise errors.ModelNotReady("The predictors of the model's parts are not running.")
        return
    with services.registry.lease(name, version) as served:
        if not served.ready():
            raise errors.ModelNotReady(f"{what} are not running.")


async def server_metadata(services: ServicesDep) -> ServerMetadata:
    """Name, version and the protocol extensions that this server has enabled."""
    control = CONTROL_EXTENSIONS if services.settings.admin_key is not None else ()
    extensions = [*EXTENSIONS, *control]
    return ServerMetadata(name="paddlepool", version=__version__, extensions=extensions)


def metadata_of(services: Services, model: str, version: int | None) -> ModelMetadata:
    """Inputs and outputs of the version that answers requests without a version."""
    if (task := task_named(services, model, version)) is not None:
        return ModelMetadata(
            name=model,
            versions=[str(VERSION)],
            platform=PLATFORM,
            inputs=_described(task.inputs),
            outputs=_described(task.outputs),
        )
    if services.registry.find_composed(model, version) is not None:
        return ModelMetadata(
            name=model,
            versions=[
                str(other.version)
                for other in reversed(services.registry.composed())
                if other.name == model and other.ready()
            ],
            platform=PLATFORM,
            inputs=[],  # requests are sent to its task
            outputs=[],
        )
    with services.registry.lease(model, version) as served:
        return ModelMetadata(
            name=served.name,
            versions=[
                str(candidate.version)
                for candidate in reversed(services.registry.served())
                if candidate.name == served.name and candidate.ready()
            ],
            platform=PLATFORMS[served.manifest.reference.format],
            inputs=_described(served.inputs),
            outputs=_described(served.outputs),
        )


def _described(specs: Sequence[TensorSpec]) -> list[TensorMetadata]:
    return [
        TensorMetadata(name=spec.name, datatype=NAMES[spec.dtype], shape=list(spec.shape))
        for spec in specs
    ]


def config_of(services: Services, model: str, version: int | None) -> dict[str, Any]:
    """Configuration of the version that answers requests without a version."""
    composed = services.registry.find_composed(model, version)
    if (task := task_named(services, model, version)) is not None:
        policy, steps = VersionPolicy(), [(services.dataplane.default_model(model), -1)]
    elif composed is not None:
        policy = composed.config.version_policy
        steps = [(part.name, part.version) for part in composed.parts.values()]
    else:
        with services.registry.lease(model, version) as served:
            return _model_config(served)
    return {
        "name": model,
        "platform": PLATFORM,
        "version_policy": _policy(policy),
        "max_batch_size": 0,
        "input": [
            _tensor(spec) | ({"optional": True} if task and spec.name in task.optional else {})
            for spec in (task.inputs if task else ())
        ],
        "output": [_tensor(spec) for spec in (task.outputs if task else ())],
        "ensemble_scheduling": {
            "step": [{"model_name": name, "model_version": number} for name, number in steps]
        },
    }


def _model_config(served: ServedModel) -> dict[str, Any]:
    """Return the configuration in Triton's form; `max_batch_size` is 0 if no axis is the batch."""
    batching = served.config.dynamic_batching
    described: dict[str, Any] = {
        "name": served.name,
        "platform": PLATFORMS[served.manifest.reference.format],
        "backend": "paddle",
        "version_policy": _policy(served.config.version_policy),
        "max_batch_size": served.max_rows if served.batched else 0,
        "input": [_tensor(spec, batched=served.batched) for spec in served.inputs],
        "output": [_tensor(spec, batched=served.batched) for spec in served.outputs],
        "instance_group": list(map(_group, served.config.instance_group)),
        "default_model_filename": served.manifest.program,
        "parameters": {"default_group": {"string_value": served.config.default_group}},
    }
    if served.batched and served.max_rows > 1:
        described["dynamic_batching"] = {
            "preferred_batch_size": [served.max_rows],
            "max_queue_delay_microseconds": round(batching.max_queue_delay_ms * 1000),
        }
    return described


def _tensor(spec: TensorSpec, *, batched: bool = False) -> dict[str, Any]:
    kind = "STRING" if spec.dtype == STRINGS else NAMES[spec.dtype]
    dims = list(spec.shape[1:] if batched else spec.shape)
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": dims}


def _policy(policy: VersionPolicy) -> dict[str, Any]:
    if policy.kind in ("latest", "canary"):
        return {"latest": {"num_versions": policy.count}}
    if policy.kind == "specific":
        return {"specific": {"versions": list(policy.versions)}}
    return {"all": {}}


def _group(group: InstanceGroup) -> dict[str, Any]:
    kind = "KIND_GPU" if group.options.get("device") == "gpu" else "KIND_CPU"
    return {"name": group.name, "kind": kind, "count": group.count}


async def all_stats(services: ServicesDep) -> dict[str, Any]:
    """Statistics of all served models."""
    return {"model_stats": [model_stats(served) for served in services.registry.served()]}


def stats_of(services: Services, model: str, version: int | None) -> dict[str, Any]:
    """Statistics of each served version, newest first; tasks have those of their model or parts."""
    own: dict[str, Any] = {}
    if task_named(services, model, version) is not None:
        own = {"name": model, "version": str(VERSION)}
        model, version = services.dataplane.default_model(model), None
    if (composed := services.registry.find_composed(model, version)) is not None:
        # Its runs are those of its parts.
        return {"model_stats": [model_stats(part) for part in composed.parts.values()]}
    if own:
        with services.registry.lease(model) as served:
            return {"model_stats": [model_stats(served) | own]}
    versions = [served for served in services.registry.served() if served.name == model]
    if version is None and versions:
        return {"model_stats": [model_stats(served) for served in versions]}
    with services.registry.lease(model, version) as served:
        return {"model_stats": [model_stats(served)]}


def model_stats(served: ServedModel) -> dict[str, Any]:
    """Return Triton's statistics: durations in ns, `last_inference` in ms since 1970 (0: never)."""
    counted = served.statistics()
    ended = counted.last_ended
    last = 0 if ended is None else round(1000 * (time.time() - (time.monotonic() - ended)))
    return {
        "name": served.name,
        "version": str(served.version),
        "last_inference": last,
        "inference_count": counted.rows,
        "execution_count": counted.executions,
        "inference_stats": {
            "success": _duration(counted.success),
            "fail": _duration(counted.failure),
            "queue": _duration(counted.queue),
            **_stages(counted.requests),
        },
        "batch_stats": [
            {"batch_size": rows, **_stages(stages)} for rows, stages in counted.batches.items()
        ],
    }


def _stages(stages: Stages) -> dict[str, Any]:
    return {
        "compute_input": _duration(stages.inputs),
        "compute_infer": _duration(stages.infer),
        "compute_output": _duration(stages.outputs),
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": round(duration.seconds * 1e9)}


def task_named(services: Services, model: str, version: int | None = None) -> TaskTensors | None:
    """Return the task of this name; None if there is none, or if a model has the name.

    A composed model that is served does not count, because it takes no tensors. Raises
    ModelNotFound for a wrong version.
    """
    task = services.task_tensors.get(model)
    composed = [served.name for served in services.registry.composed()]
    if task is None or (model in services.registry.wanted() and model not in composed):
        return None
    if version not in (None, VERSION):
        raise errors.ModelNotFound(
            f"a task has only version {VERSION}; the parameter model names the model's version"
        )
    return task


async def index(request: Request, services: ServicesDep) -> list[IndexEntry]:
    """Every version with its state. With `{"ready": true}`, only those that are ready."""
    only_ready = await _member(request, "ready", False, "true or false")
    return await listed_versions(services, only_ready=only_ready)


async def listed_versions(services: Services, *, only_ready: bool) -> list[IndexEntry]:
    """Return every version of every model, then the tasks; with `only_ready`, only ready ones.

    A task is left out if it has no model, or if a model has its name.
    """
    loop = asyncio.get_running_loop()
    statuses = await loop.run_in_executor(services.operations, services.registry.index)
    entries = [
        IndexEntry(
            name=status.name,
            version="" if status.version is None else str(status.version),
            state=status.state,
            reason=status.reason,
        )
        for status in statuses
    ]
    for name in services.task_tensors:
        if name in services.registry.wanted():
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
    """Load a model, or load it again, and return afterwards. `parameters` must be empty.

    Raises InvalidParameter, ModelNotFound, ModelNotReady during the shutdown, and ModelLoadFailed.
    """
    if parameters:
        raise errors.InvalidParameter(
            "a model is loaded from the repository; its configuration and files cannot be "
            "overridden, so parameters must be empty"
        )
    try:
        await services.registry.load(model)
    except errors.OperatorError as error:
        raise errors.ModelLoadFailed(error.message) from error
    except OSError as error:  # with a path, which is for the log alone
        log.warning("%s: cannot be loaded: %s", model, error)
        reason = error.strerror or "the system refused"
        raise errors.ModelLoadFailed(f"{model}: {reason}: see the log") from error


async def unload(model: str, request: Request, services: ServicesDep) -> Response:
    """Stop serving the model; answers when its requests have ended, or after the drain timeout."""
    await unload_model(services, model, await _parameters(request))
    return Response()


async def unload_model(services: Services, model: str, parameters: Mapping[str, Any]) -> None:
    """Unload a model; return when its requests have ended, or after the drain timeout.

    Raises InvalidParameter and ModelNotFound.
    """
    # Parts are never unloaded with a composed model, so unload_dependents has no effect.
    dependents = parameters.get("unload_dependents")
    if set(parameters) - {"unload_dependents"} or not isinstance(dependents, bool | None):
        raise errors.InvalidParameter("the only parameter is unload_dependents: true or false")
    await services.registry.unload(model)


async def _member(request: Request, name: str, default: T, what: str) -> T:
    """Return the member `name` of the JSON body, or `default` if it is missing or null.

    An empty body counts as {}. Any Content-Type is accepted. Raises InvalidParameter for other
    members, and for a value of another type than `default`; `what` names the needed type.
    """
    body = await request.body()
    document = json_object(body) if body else {}
    if set(document) - {name}:
        raise errors.InvalidParameter(f"the body must be a JSON object that has only: {name}")
    value = document.get(name)
    if not isinstance(value, type(default) | None):
        raise errors.InvalidParameter(f"{name} must be {what}")
    return default if value is None else value


async def _parameters(request: Request) -> dict[str, Any]:
    return await _member(request, "parameters", dict[str, Any](), "a JSON object")

"""Metadata of the server, and the tensors, configuration and statistics of each model.

Configuration and statistics have the form that Triton's tools read. A task's whole pipeline appears
as an ensemble of one step. If the repository has a model with a task's name, the name means the
model under /v2, and only the task's own endpoint answers for the task.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from app import __version__
from app.contracts.errors import ModelNotFound, ModelNotReady
from app.contracts.tensors import STRINGS, TaskTensors, TensorSpec
from app.engine.pool.statistics import Duration, Stages
from app.engine.registry.model import ServedModel
from app.models.repository.config import InstanceGroup, VersionPolicy
from app.service.api.problems import PROTOCOL, documented
from app.service.api.services import Services, ServicesDep
from app.service.api.v2.tensors import NAMES

PLATFORMS = {"paddle": "paddle_inference", "onnx": "onnxruntime_onnx"}
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "schedule_policy",
    "statistics",
)
CONTROL_EXTENSIONS = ("model_repository", "model_repository(unload_dependents)")


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """Name, type and shape of a tensor. `shape` has -1 for a variable size; the first axis is the
    batch, except in a task's tensors."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


def router() -> APIRouter:
    """Build the routes for metadata, configuration and statistics."""
    routes = APIRouter(tags=["v2"])
    routes.add_api_route("/v2", server_metadata, operation_id="serverMetadata")
    unready = documented(404, 503, form=PROTOCOL)
    # Added first: otherwise the route of one model would take `stats` as a model's name.
    routes.add_api_route("/v2/models/stats", all_stats, operation_id="statistics")
    add_by_version(
        routes, "/stats", stats, version_stats, operation="Statistics", responses=unready
    )
    add_by_version(
        routes, "", model_metadata, version_metadata, operation="Metadata", responses=unready
    )
    add_by_version(routes, "/config", config, version_config, operation="Config", responses=unready)
    return routes


async def server_metadata(services: ServicesDep) -> ServerMetadata:
    """Name, version and the protocol extensions that this server has enabled."""
    control = CONTROL_EXTENSIONS if services.settings.admin_key is not None else ()
    return ServerMetadata(
        name="paddlepool", version=__version__, extensions=[*EXTENSIONS, *control]
    )


async def model_metadata(model: str, services: ServicesDep) -> ModelMetadata:
    """Inputs and outputs of the version that answers requests without a version."""
    return metadata_of(services, model, None)


async def version_metadata(model: str, version: int, services: ServicesDep) -> ModelMetadata:
    """Inputs and outputs of one version."""
    return metadata_of(services, model, version)


def metadata_of(services: Services, model: str, version: int | None) -> ModelMetadata:
    if (task := task_named(services, model, version)) is not None:
        return ModelMetadata(
            name=model,
            versions=[str(VERSION)],
            platform=PLATFORM,
            inputs=_described(task.inputs),
            outputs=_described(task.outputs),
        )
    with services.registry.lease(model, version) as served:
        return ModelMetadata(
            name=served.name,
            versions=[
                str(each.version)
                for each in reversed(services.registry.served())
                if each.name == served.name and each.ready()
            ],
            platform=platform_of(served),
            inputs=_described(served.inputs),
            outputs=_described(served.outputs),
        )


def platform_of(served: ServedModel) -> str:
    """The format of the version's reference program, as Triton names it."""
    return PLATFORMS[served.manifest.reference.format]


async def config(model: str, services: ServicesDep) -> dict[str, Any]:
    """Configuration of the version that answers requests without a version."""
    return config_of(services, model, None)


async def version_config(model: str, version: int, services: ServicesDep) -> dict[str, Any]:
    """Configuration of one version."""
    return config_of(services, model, version)


def config_of(services: Services, model: str, version: int | None) -> dict[str, Any]:
    if (task := task_named(services, model, version)) is not None:
        return configured(services, task, model)
    with services.registry.lease(model, version) as served:
        return model_config(served)


def model_config(served: ServedModel) -> dict[str, Any]:
    """The configuration in Triton's form; `max_batch_size` 0 means that no axis is the batch."""
    batching = served.config.dynamic_batching
    described: dict[str, Any] = {
        "name": served.name,
        "platform": platform_of(served),
        "backend": "paddle",
        "version_policy": _policy(served.config.version_policy),
        "max_batch_size": served.max_rows if served.batched else 0,
        "input": [_tensor(spec, batched=served.batched) for spec in served.inputs],
        "output": [_tensor(spec, batched=served.batched) for spec in served.outputs],
        "instance_group": [_group(group) for group in served.config.instance_group],
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
    if policy.kind == "latest":
        return {"latest": {"num_versions": policy.count}}
    if policy.kind == "specific":
        return {"specific": {"versions": list(policy.versions)}}
    return {"all": {}}


def _group(group: InstanceGroup) -> dict[str, Any]:
    kind = "KIND_GPU" if group.options.get("device") == "gpu" else "KIND_CPU"
    return {"name": group.name, "kind": kind, "count": group.count}


MODEL = "/v2/models/{model}"
MODEL_VERSION = "/v2/models/{model}/versions/{version}"


def add_by_version(
    routes: APIRouter,
    tail: str,
    one: Callable[..., Any],
    by_number: Callable[..., Any],
    *,
    operation: str,
    **options: Any,
) -> None:
    """Add a route for a model and one for its version, with `tail` after their paths."""
    routes.add_api_route(MODEL + tail, one, operation_id=f"model{operation}", **options)
    routes.add_api_route(
        MODEL_VERSION + tail, by_number, operation_id=f"modelVersion{operation}", **options
    )


async def all_stats(services: ServicesDep) -> dict[str, Any]:
    """Statistics of all served models."""
    return {"model_stats": [model_stats(served) for served in services.registry.served()]}


async def stats(model: str, services: ServicesDep) -> dict[str, Any]:
    """Statistics of every served version of the model, newest first; a task has its model's."""
    return stats_of(services, model, None)


async def version_stats(model: str, version: int, services: ServicesDep) -> dict[str, Any]:
    """Statistics of one version."""
    return stats_of(services, model, version)


def stats_of(services: Services, model: str, version: int | None) -> dict[str, Any]:
    if task_named(services, model, version) is not None:
        with services.registry.lease(services.dataplane.default_model(model)) as served:
            own = {"name": model, "version": str(VERSION)}
            return {"model_stats": [model_stats(served) | own]}
    versions = [each for each in services.registry.served() if each.name == model]
    if version is None and versions:
        return {"model_stats": [model_stats(each) for each in versions]}
    with services.registry.lease(model, version) as served:
        return {"model_stats": [model_stats(served)]}


def model_stats(served: ServedModel) -> dict[str, Any]:
    """Statistics since the load: durations in ns, `last_inference` in ms since 1970 (0: never)."""
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


VERSION = 1
PLATFORM = "ensemble"


def task_named(services: Services, model: str, version: int | None = None) -> TaskTensors | None:
    """Return the task of this name, or None if there is none or a model has the name.

    Raises ModelNotFound for any version except 1, the only version of a task.
    """
    task = services.task_tensors.get(model)
    if task is None or model in services.registry.wanted():
        return None
    if version not in (None, VERSION):
        raise ModelNotFound(
            f"a task has only version {VERSION}; the parameter model names the model's version"
        )
    return task


def check_ready(services: Services, name: str) -> None:
    """Raise ModelNotFound or ModelNotReady if the task's model cannot answer."""
    with services.registry.lease(services.dataplane.default_model(name)) as served:
        if not served.ready():
            raise ModelNotReady("The predictors of the task's model are not running.")


def _described(specs: Sequence[TensorSpec]) -> list[TensorMetadata]:
    return [
        TensorMetadata(name=spec.name, datatype=NAMES[spec.dtype], shape=list(spec.shape))
        for spec in specs
    ]


def configured(services: Services, task: TaskTensors, name: str) -> dict[str, Any]:
    """The task's configuration in Triton's form."""
    inputs = [
        _tensor(spec) | ({"optional": True} if spec.name in task.optional else {})
        for spec in task.inputs
    ]
    return {
        "name": name,
        "platform": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": inputs,
        "output": [_tensor(spec) for spec in task.outputs],
        "ensemble_scheduling": {
            "step": [{"model_name": services.dataplane.default_model(name), "model_version": -1}]
        },
    }


def listed(services: Services) -> Iterator[tuple[str, str, str]]:
    """Yield name, state and reason of each task that has a model, for the repository index."""
    for name in services.task_tensors:
        if task_named(services, name) is None:
            continue
        try:
            check_ready(services, name)
        except ModelNotFound:
            continue
        except ModelNotReady as error:
            yield name, "UNAVAILABLE", error.message
        else:
            yield name, "READY", ""

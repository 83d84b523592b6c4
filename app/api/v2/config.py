"""GET …/config: a model's configuration in the form that Triton's tools read."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.problems import documented
from app.api.services import Services, ServicesDep
from app.api.v2.metadata import platform_of
from app.api.v2.tasks import check_version, configured, task_named
from app.api.v2.tensors import NAMES
from app.api.v2.version_routes import add_by_version
from app.contracts.tensors import TensorSpec
from app.engine.registry.model import ServedModel
from app.repository.config import InstanceGroup, VersionPolicy


def router() -> APIRouter:
    routes = APIRouter(tags=["v2"])
    unready = documented(404, 503, protocol=True)
    add_by_version(routes, "/config", config, version_config, operation="Config", responses=unready)
    return routes


async def config(model: str, services: ServicesDep) -> dict[str, Any]:
    """Configuration of the version that answers when a request names none."""
    return config_of(services, model, None)


async def version_config(model: str, version: int, services: ServicesDep) -> dict[str, Any]:
    """Configuration of one version."""
    return config_of(services, model, version)


def config_of(services: Services, model: str, version: int | None) -> dict[str, Any]:
    if (task := task_named(services, model)) is not None:
        check_version(version)
        return configured(services, task, model)
    with services.registry.lease(model, version) as served:
        return model_config(served)


def model_config(served: ServedModel) -> dict[str, Any]:
    """`max_batch_size` 0 means that no axis is the batch; `dims` are without it otherwise."""
    batching = served.config.dynamic_batching
    described: dict[str, Any] = {
        "name": served.name,
        "platform": platform_of(served),
        "backend": "paddle",
        "version_policy": _policy(served.config.version_policy),
        "max_batch_size": served.max_rows if served.batched else 0,
        "input": [_tensor(spec, served.batched) for spec in served.inputs],
        "output": [_tensor(spec, served.batched) for spec in served.outputs],
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


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    dims = list(spec.shape[1:] if batched else spec.shape)
    return {"name": spec.name, "data_type": f"TYPE_{NAMES[spec.dtype]}", "dims": dims}


def _policy(policy: VersionPolicy) -> dict[str, Any]:
    if policy.kind == "latest":
        return {"latest": {"num_versions": policy.count}}
    if policy.kind == "specific":
        return {"specific": {"versions": list(policy.versions)}}
    return {"all": {}}


def _group(group: InstanceGroup) -> dict[str, Any]:
    kind = "KIND_GPU" if group.options.get("device") == "gpu" else "KIND_CPU"
    return {"name": group.name, "kind": kind, "count": group.count}

"""Tasks as models of the protocol: a task's whole pipeline appears as an ensemble of one step.

If the repository has a model with a task's name, the name means the model. The task then has only
its own endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.contracts.errors import ModelNotFound, ModelNotReady
from app.contracts.tensors import STRINGS, TaskTensors, TensorSpec
from app.service.api.services import Services
from app.service.api.v2.tensors import NAMES

VERSION = 1
PLATFORM = "ensemble"


def task_named(services: Services, model: str) -> TaskTensors | None:
    """Return the task of this name, or None if there is none or a model has the name."""
    task = services.task_tensors.get(model)
    if task is None or model in services.registry.wanted():
        return None
    return task


def check_version(version: int | None) -> None:
    """Raise ModelNotFound for any version but 1, a task's only one, whatever its model has."""
    if version not in (None, VERSION):
        raise ModelNotFound(
            f"a task has only version {VERSION}; that of its model is named by the parameter model",
            limit=VERSION,
            received=version,
        )


def model_of(services: Services, name: str) -> str:
    """Return the task's default model. Raises ModelNotFound."""
    if name not in services.default_models:
        raise ModelNotFound(f"no model for the task {name!r} is configured")
    return services.default_models[name]


def check_ready(services: Services, name: str) -> None:
    """Raise ModelNotFound or ModelNotReady if the task's model cannot answer."""
    with services.registry.lease(model_of(services, name)) as served:
        if not served.ready():
            raise ModelNotReady("The predictors of the task's model are not running.")


def described(task: TaskTensors, name: str) -> dict[str, Any]:
    """The task's metadata."""
    return {
        "name": name,
        "versions": [str(VERSION)],
        "platform": PLATFORM,
        "inputs": [described_tensor(spec) for spec in task.inputs],
        "outputs": [described_tensor(spec) for spec in task.outputs],
    }


def described_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": NAMES[spec.dtype], "shape": list(spec.shape)}


def configured(services: Services, task: TaskTensors, name: str) -> dict[str, Any]:
    """The task's configuration in Triton's form."""
    inputs = [
        _configured(spec) | ({"optional": True} if spec.name in task.optional else {})
        for spec in task.inputs
    ]
    return {
        "name": name,
        "platform": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": inputs,
        "output": [_configured(spec) for spec in task.outputs],
        "ensemble_scheduling": {
            "step": [{"model_name": model_of(services, name), "model_version": -1}]
        },
    }


def _configured(spec: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if spec.dtype == STRINGS else NAMES[spec.dtype]
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape)}


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

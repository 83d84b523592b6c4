"""Metadata of the Open Inference Protocol: what the server is and what each model takes."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from app import __version__
from app.api.problems import documented
from app.api.services import Services, ServicesDep
from app.api.v2.tasks import check_version, described, described_tensor, task_named
from app.api.v2.version_routes import add_by_version
from app.engine.registry.model import ServedModel

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
    """`shape` has -1 where the size is free; the first axis is the batch, unless a task's."""

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
    """Server and model metadata."""
    routes = APIRouter(tags=["v2"])
    routes.add_api_route("/v2", server_metadata, operation_id="serverMetadata")
    unready = documented(404, 503, protocol=True)
    add_by_version(
        routes, "", model_metadata, version_metadata, operation="Metadata", responses=unready
    )
    return routes


async def server_metadata(services: ServicesDep) -> ServerMetadata:
    """Name, version and the protocol extensions that this server has switched on."""
    control = CONTROL_EXTENSIONS if services.settings.admin_key is not None else ()
    return ServerMetadata(
        name="paddlepool", version=__version__, extensions=[*EXTENSIONS, *control]
    )


async def model_metadata(model: str, services: ServicesDep) -> ModelMetadata:
    """Inputs and outputs of the version that answers when a request names none."""
    return metadata_of(services, model, None)


async def version_metadata(model: str, version: int, services: ServicesDep) -> ModelMetadata:
    """Inputs and outputs of one version."""
    return metadata_of(services, model, version)


def metadata_of(services: Services, model: str, version: int | None) -> ModelMetadata:
    if (task := task_named(services, model)) is not None:
        check_version(version)
        return ModelMetadata(**described(task, model))
    with services.registry.lease(model, version) as served:
        return ModelMetadata(
            name=served.name,
            versions=[
                str(each.version)
                for each in reversed(services.registry.served())
                if each.name == served.name and each.ready()
            ],
            platform=platform_of(served),
            inputs=[TensorMetadata(**described_tensor(spec)) for spec in served.inputs],
            outputs=[TensorMetadata(**described_tensor(spec)) for spec in served.outputs],
        )


def platform_of(served: ServedModel) -> str:
    """The format of the version's reference program, in Triton's words."""
    return PLATFORMS[served.manifest.reference.format]

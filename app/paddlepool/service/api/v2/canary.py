"""The endpoints that show, promote, reject and roll back a new version of a model.

They extend the protocol's model control, and need its admin key. docs/canary.md describes them.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from paddlepool.contracts.status import CanaryStatus, TrialExample
from paddlepool.contracts.tensors import Tensors
from paddlepool.service.api.errors import PROTOCOL, documented
from paddlepool.service.api.services import CanaryControl, ServicesDep
from paddlepool.service.api.v2.tensors import NAMES


class ExampleTensor(BaseModel):
    """A tensor as in a request to `/infer`; null stands for NaN and infinity."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float | int | bool | None]


class ExampleReply(BaseModel):
    """A request of a client, with the outputs of the new version and of the current one.

    `agreement` is that of the two, from 0 to 1. An example of a composed model has the payload of
    the task's request and both answers instead.
    """

    agreement: float
    inputs: list[ExampleTensor] = []
    outputs: list[ExampleTensor] = []
    current_outputs: list[ExampleTensor] = []
    request: Any = Field(
        None, description="The payload, bytes as URL-safe base64; null: not composed."
    )
    answer: Any = Field(None, description="Of the new versions.")
    current_answer: Any = Field(None, description="Of the versions that serve.")


PATH = "/v2/repository/models/{model}"


def router() -> APIRouter:
    routes = APIRouter()
    options: dict[str, Any] = {
        "tags": ["model control"],
        "responses": documented(403, 404, 409, form=PROTOCOL),
    }
    routes.add_api_route(f"{PATH}/canary", show, operation_id="modelCanary", **options)
    routes.add_api_route(
        f"{PATH}/canary/examples", examples, operation_id="modelCanaryExamples", **options
    )
    for action, change, description in (
        ("promote", lambda control: control.promote, "Serve the newest version now."),
        ("reject", lambda control: control.reject, "Keep the newest version unloaded."),
        ("rollback", lambda control: control.rollback, "Serve the previous version again."),
    ):
        routes.add_api_route(
            f"{PATH}/{action}",
            _endpoint(change),
            methods=["POST"],
            operation_id=f"model{action.capitalize()}",
            description=description,
            **options,
        )
    return routes


async def show(model: str, services: ServicesDep) -> CanaryStatus:
    """The latest new version of a model, the evidence about it, and the verdict."""
    status = partial(services.canaries.status, model)  # it takes some 20 ms
    return await asyncio.get_running_loop().run_in_executor(services.operations, status)


async def examples(model: str, services: ServicesDep) -> list[ExampleReply]:
    """The requests on which the two versions differ most, worst first, if the policy keeps any."""

    def read() -> list[ExampleReply]:
        rows = services.canaries.examples_of(model)
        composed = services.registry.find_composed(model, None) is not None
        return list(map(_answers if composed else _outputs, rows))

    return await asyncio.get_running_loop().run_in_executor(services.operations, read)


def _outputs(example: TrialExample) -> ExampleReply:
    return ExampleReply(
        agreement=example.agreement,
        inputs=_tensors(example.inputs),
        outputs=_tensors(example.outputs),
        current_outputs=_tensors(example.expected),
    )


_REQUEST = TypeAdapter[Any](Any, config=ConfigDict(ser_json_bytes="base64"))


def _answers(example: TrialExample) -> ExampleReply:
    payload = example.inputs
    if isinstance(payload, BaseModel):  # which would choose the form of bytes itself
        payload = payload.model_dump()
    request = _REQUEST.dump_python(payload, mode="json", fallback=str)
    return ExampleReply(
        agreement=example.agreement,
        request=request,
        answer=example.outputs,
        current_answer=example.expected,
    )


def _tensors(tensors: Tensors) -> list[ExampleTensor]:
    return [
        ExampleTensor(
            name=name,
            datatype=NAMES[array.dtype.name],
            shape=list(array.shape),
            data=[value if math.isfinite(value) else None for value in array.ravel().tolist()],
        )
        for name, array in tensors.items()
    ]


def _endpoint(
    change: Callable[[CanaryControl], Callable[[str], Awaitable[None]]],
) -> Callable[..., Awaitable[CanaryStatus]]:
    async def endpoint(model: str, services: ServicesDep) -> CanaryStatus:
        await change(services.canaries)(model)
        return await show(model, services)

    return endpoint

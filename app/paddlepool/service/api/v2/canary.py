"""The endpoints that show, promote, reject and roll back a new version of a model.

They extend the protocol's model control, and need its admin key. docs/canary.md describes them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter

from paddlepool.contracts.status import CanaryStatus
from paddlepool.service.api.errors import PROTOCOL, documented
from paddlepool.service.api.services import CanaryControl, ServicesDep

PATH = "/v2/repository/models/{model}"


def router() -> APIRouter:
    routes = APIRouter()
    options: dict[str, Any] = {
        "tags": ["model control"],
        "responses": documented(403, 404, 409, form=PROTOCOL),
    }
    routes.add_api_route(f"{PATH}/canary", show, operation_id="modelCanary", **options)
    for action, change, description in (
        ("promote", lambda control: control.promote, "Serve the newest version now."),
        ("reject", lambda control: control.reject, "Keep the newest version unloaded."),
        ("rollback", lambda control: control.rollback, "Return to the version before."),
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


def _endpoint(
    change: Callable[[CanaryControl], Callable[[str], Awaitable[None]]],
) -> Callable[..., Awaitable[CanaryStatus]]:
    async def endpoint(model: str, services: ServicesDep) -> CanaryStatus:
        await change(services.canaries)(model)
        return await show(model, services)

    return endpoint

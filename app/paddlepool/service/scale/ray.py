"""Replicas under Ray Serve: `paddlepool ray up`, or `serve run` with the path of `application`.

A replica is a complete server in its own process, with its predictors and its batcher. Its Ray
actor only forwards bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from ray import serve
from ray.serve.config import BackpressureConfig
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from paddlepool.service.api.errors import http_fault, reply
from paddlepool.service.scale.local_server import LocalServer, merged, seconds_to_end
from paddlepool.service.scale.relay import Relay
from paddlepool.settings.server import Settings

READY = "/v2/health/ready"
METRICS = "/metrics"
MODEL_CONTROL = "/v2/repository"
ACCESS_HEADERS = (b"authorization", b"x-api-key", b"host")
"""Request headers that decide whether a client may read the metrics."""

MAX_ONGOING = 16
"""Maximum requests that a replica accepts at a time: the default length of a model's queue. Each
proxy of Ray queues up to MAX_QUEUED further ones for the next free replica; the others get 503."""

MAX_QUEUED = 2 * MAX_ONGOING
TARGET_ONGOING = 4
"""Concurrent requests per replica that Ray's autoscaler aims for. Two running requests and two in
preparation keep two cores busy."""

WAIT_SECONDS = 15.0
"""Time for the requests in flight when Ray stops a replica. The shutdown timeout is this time plus
the maximum duration of the server's drain."""

START_SECONDS = 600.0
POLL_SECONDS = 0.1
SCRAPE_SECONDS = 5.0


class Scale(BaseModel):
    """Arguments of `serve run` for `application`, and `args` of a RayService."""

    model_config = ConfigDict(extra="forbid")

    num_cpus: float = Field(2, gt=0, description="Cores that a replica's predictors use.")
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(4, ge=1, validate_default=True)
    upscale_delay_s: float = Field(10, ge=0)
    downscale_delay_s: float = Field(300, ge=0)

    @field_validator("max_replicas")
    @classmethod
    def _check_max_replicas(cls, value: int, info: ValidationInfo) -> int:
        minimum = info.data.get("min_replicas", 1)
        if value < minimum:
            raise ValueError(f"must be at least min_replicas, which is {minimum}")
        return value


@serve.ingress()
class Replica:
    """A Ray replica: a server and the relay to it."""

    async def __serve_build_asgi_app__(self) -> ASGIApp:  # Ray requires this name
        """Start the server; return the application when its models answer.

        Raises RuntimeError after START_SECONDS, pydantic.ValidationError for a wrong setting, and
        the errors of Settings.keys().
        """
        settings = Settings()
        self._server = LocalServer(settings)
        self._relay = Relay(self._server.port)
        keys = settings.keys() if settings.health_needs_key else ()
        self._own_key = [("authorization", f"Bearer {key.decode()}") for key in keys[:1]]
        await self._until_ready()

        # uvicorn recognizes a coroutine function as ASGI 3, but not a bound method.
        async def serve_request(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await self._live(receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            elif scope["path"] == METRICS:
                await self._metrics(scope, receive, send)
            elif scope["path"].startswith(MODEL_CONTROL):
                # Model control would change the models of only one replica.
                fault = http_fault(404, "Model control is not available through Ray Serve.")
                await reply(fault, scope)(scope, receive, send)
            else:
                await self._relay(scope, receive, send)

        return serve_request

    async def check_health(self) -> None:
        """Raise RuntimeError if the server is not ready, or aiohttp.ClientError without a reply."""
        status, text = await self._relay.get(READY, self._own_key)
        if status != 200:
            raise RuntimeError(f"{READY}: {status}: {text[:300]}")

    async def scrape(self, headers: list[tuple[str, str]]) -> tuple[str, str]:
        """Return this replica's id and metrics. Raises aiohttp.ClientError without a reply."""
        _, text = await self._relay.get(METRICS, headers)
        return serve.get_replica_context().replica_id.unique_id, text

    async def _until_ready(self) -> None:
        until = asyncio.get_running_loop().time() + START_SECONDS
        failure: object = "no answer"
        while asyncio.get_running_loop().time() < until:
            try:
                await self.check_health()
            except (aiohttp.ClientError, RuntimeError) as error:
                failure = error
                await asyncio.sleep(POLL_SECONDS)
            else:
                return
        raise RuntimeError(f"the server was not ready within {START_SECONDS:.0f} s: {failure}")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer the ASGI lifespan; drain the server at its end, which follows the last request."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._server.drain()
        await self._relay.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the metrics of the replicas that answer in time.

        If this replica's own server refuses the request, sends its reply instead.
        """
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name in ACCESS_HEADERS
        ]
        status, _ = await self._relay.get(METRICS, headers)
        if status != 200:
            await self._relay(scope, receive, send)
            return
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        results = await handle.broadcast("scrape", headers).results_async(
            timeout_s=SCRAPE_SECONDS, return_exceptions=True
        )
        texts = dict(result for result in results if not isinstance(result, Exception))
        response = Response(
            await asyncio.to_thread(merged, texts, label="replica"),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )
        await response(scope, receive, send)


def application(args: Mapping[str, Any]) -> serve.Application:
    """Build the application for `serve run` and `serveConfigV2`; `args` has the fields of Scale.

    The replicas' shutdown timeout comes from this process's settings. Raises
    pydantic.ValidationError for a field that Scale does not accept, and for a wrong setting.
    """
    scale = Scale.model_validate(args)
    return (
        serve.deployment(Replica)
        .options(
            name="paddlepool",
            ray_actor_options={"num_cpus": scale.num_cpus},
            max_ongoing_requests=MAX_ONGOING,
            max_queued_requests=MAX_QUEUED,
            backpressure_config=BackpressureConfig(status_code=503, retry_after_s=1),
            autoscaling_config=scale.model_dump(exclude={"num_cpus"})
            | {"target_ongoing_requests": TARGET_ONGOING},
            health_check_period_s=5,
            health_check_timeout_s=10,
            graceful_shutdown_timeout_s=WAIT_SECONDS + seconds_to_end(Settings()),
        )
        .bind()
    )

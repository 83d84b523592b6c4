"""grpc.health.v1: health of the server and of each model, for load balancers and probes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from app.contracts.errors import InvalidTensor, ModelNotFound, ModelNotReady
from app.service.api.services import Services
from app.service.api.v2 import metadata
from app.service.grpc.calls import Call, Calls, Method, unary
from app.service.grpc.messages import SERVICE

NAME = "grpc.health.v1.Health"
PATH = "/v2/health/ready"
POLL_SECONDS = 1.0
SERVERS = ("", SERVICE, NAME)
"""Service names that mean the server itself; other names are models and tasks."""

Response = health_pb2.HealthCheckResponse


def handler(services: Services, calls: Calls) -> tuple[grpc.GenericRpcHandler, list[Method]]:
    """Return the handler of the health service, and its gRPC methods.

    The gRPC server declares the methods' routes as metric labels.
    """

    async def answer(message: bytes, call: Call) -> bytes:
        del call
        asked = _parse(message)
        return bytes(Response(status=_status(services, asked)).SerializeToString())

    check = Method(name="Check", path=PATH, answer=answer, service=NAME)

    async def first(message: bytes, call: Call) -> bytes:
        """Check that the message is a request, and return it. `watch` then sends the statuses."""
        del call
        _parse(message)
        return message

    watched = Method(name="Watch", path=PATH, answer=first, service=NAME)

    async def watch(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        asked = _parse(await calls.answer(watched, messages, context))
        last: int | None = None
        async with calls.kept_open(context):
            while True:
                # Read before the status, so that the last status sent is NOT_SERVING.
                draining = services.lifecycle.draining
                try:
                    status = _status(services, asked)
                except ModelNotFound:
                    status = Response.SERVICE_UNKNOWN
                if status != last:
                    yield bytes(Response(status=status).SerializeToString())
                    last = status
                if draining:
                    return
                await asyncio.sleep(POLL_SECONDS)

    table = {"Check": unary(calls, check), "Watch": grpc.stream_stream_rpc_method_handler(watch)}
    return grpc.method_handlers_generic_handler(NAME, table), [check, watched]


def _parse(message: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(message).service)
    except Exception:
        raise InvalidTensor("the message is not a HealthCheckRequest") from None


def _status(services: Services, asked: str) -> int:
    """Return the serving status of the server or a model. Raises ModelNotFound."""
    try:
        if asked in SERVERS:
            metadata.check_server(services)
        else:
            metadata.check_model(services, asked, None)
    except ModelNotReady:
        return int(Response.NOT_SERVING)
    return int(Response.SERVING)

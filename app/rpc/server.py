"""The server's second port: opened with the application, closed as the first one is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from app.api.middleware.gates import Gates
from app.api.problems import ANY_STATUSES, TASK_STATUSES, Fault
from app.api.services import Services
from app.api.v2.tensors import NO_SHARED_MEMORY
from app.contracts.errors import ConfigError
from app.rpc import health
from app.rpc.calls import METHOD, Calls, Method, unary
from app.rpc.messages import SERVICE, Messages
from app.rpc.methods import INFER, inference, methods

STATUSES = (200, *ANY_STATUSES, *TASK_STATUSES)
WINDOW_BYTES = 1 << 18
"""What a call's message may have sent before anybody reads it; then as much as the message has."""

IDENTITY_ONLY = 1
"""gRPC's set of compressions, of which the first bit is none at all: a small message must not
become a large one here."""

log = logging.getLogger("paddlepool.server")


class GrpcDoor:
    """Built in the event loop that serves; `open` binds the port and says it in `port`.

    `connections` may be open, and as many calls under way in all of them; an idle one is closed as
    one of HTTP is, which its client, once it has something to ask, opens again.
    """

    def __init__(self, services: Services, gates: Gates, *, connections: int) -> None:
        self._services = services
        self.port = 0
        self._closing: asyncio.Future[None] | None = None
        settings = services.settings
        messages = Messages()
        calls = Calls(services, gates, connections=connections)
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=connections,
            options=(
                ("grpc.so_reuseport", 0),  # a taken port must be an error
                ("grpc.max_receive_message_length", settings.infer_max_bytes),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
                ("grpc.http2.bdp_probe", 0),  # which would widen the window to megabytes
                ("grpc.max_metadata_size", settings.header_max_bytes),
                ("grpc.absolute_max_metadata_size", settings.header_max_bytes),
                ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
                ("grpc.max_allowed_incoming_connections", connections),
                (
                    "grpc.server_handshake_timeout_ms",
                    _milliseconds(settings.header_timeout_seconds),
                ),
                ("grpc.max_connection_idle_ms", _milliseconds(settings.keep_alive_seconds)),
            ),
        )
        own = methods(services, messages)
        stream = Method(name="ModelStreamInfer", path=INFER, answer=inference(services, messages))
        table = {method.name: unary(calls, method) for method in own}
        table[stream.name] = _stream(calls, stream, messages)
        health_handler, probes = health.handler(services, calls)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, table),
                health_handler,
                _SharedMemory(),
            )
        )
        for method in (*own, stream, *probes):
            services.metrics.expect_route(method.route, (METHOD,), STATUSES)
        for known in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            file = descriptor_pb2.FileDescriptorProto.FromString(known.serialized_pb)
            messages.pool.Add(file)
        names = (SERVICE, health.NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            _Reflection(calls, names, messages.pool), self._server
        )

    async def open(self) -> None:
        """Raises ConfigError where the port cannot be had."""
        settings = self._services.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self.port = self._server.add_insecure_port(f"{host}:{settings.grpc_port}")
        except RuntimeError:
            raise ConfigError(f"cannot listen on {host}:{settings.grpc_port} for gRPC") from None
        await self._server.start()
        log.info("listening for gRPC", extra={"address": f"{host}:{self.port}"})

    async def close(self) -> None:
        """Take no more calls; what is in flight ends within the drain timeout, or is cut off."""
        if self._closing is None:
            grace = self._services.settings.drain_timeout_seconds
            self._closing = asyncio.ensure_future(self._server.stop(grace))
        await asyncio.shield(self._closing)


def _stream(calls: Calls, method: Method, messages: Messages) -> grpc.RpcMethodHandler:
    kind = messages["ModelStreamInferResponse"]

    async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for reply in calls.answer_each(method, requests, context):
            if isinstance(reply, Fault):
                response = kind(error_message=reply.detail)
            else:
                response = kind()
                response.infer_response.MergeFromString(reply)
            yield bytes(response.SerializeToString())

    return grpc.stream_stream_rpc_method_handler(handle)


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # grpc has no types
    """The library's, of which not too many are kept open."""

    def __init__(self, calls: Calls, names: Sequence[str], pool: Any) -> None:
        super().__init__(names, pool)
        self._calls = calls

    async def ServerReflectionInfo(  # noqa: N802  # the method's name
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        async with self._calls.kept_open(context):
            async for reply in super().ServerReflectionInfo(request_iterator, context):
                yield reply


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


class _SharedMemory(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Refuses shared memory by name, where gRPC alone would say that it knows no such method."""

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        if "SharedMemory" not in handler_call_details.method:
            return None

        async def refuse(_messages: AsyncIterator[bytes], context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SHARED_MEMORY)

        # As a stream: of a message alone the whole would be received before it is refused.
        return grpc.stream_stream_rpc_method_handler(refuse)

"""The gRPC port and its methods.

The port is opened with the application and drained like the HTTP port. Each method reads a message
and calls the same function as the HTTP route. Besides the protocol's methods, the port has
grpc.health.v1, the health of the server and of each model, and server reflection.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from paddlepool.contracts import errors
from paddlepool.service.api.middleware.limits import Gates
from paddlepool.service.api.routes import output_headers
from paddlepool.service.api.services import Services
from paddlepool.service.api.v2 import models
from paddlepool.service.api.v2.tensors import NO_SHARED_MEMORY
from paddlepool.service.grpc.calls import Call, Calls, Failed, Method, UnaryHandler
from paddlepool.service.grpc.messages import (
    SERVICE,
    Messages,
    id_of,
    infer_message,
    read_parameters,
    read_version,
)

WINDOW_BYTES = 1 << 18
"""Bytes of a message that a client may send before a handler begins to read the message."""

IDLE_STALLS = 10
"""The idle timeout as a multiple of `send_stall_seconds`. gRPC counts a connection as idle when its
last reply is written, although the client may still be reading that reply."""

PING_MILLISECONDS = 1_000
"""Least time between the pings with which a client checks its connection. Clients that watch for a
long time use 10 seconds or more."""

REFLECTION_BYTES = 65_536
"""Maximum size of a reflection request. It contains a name, and the reply repeats the request."""

IDENTITY_ONLY = 1
"""Bit set of gRPC's compression algorithms; the first bit means no compression. A small message
must not decompress to a large one."""

CLIENT_LOG_LINES = ("Invalid encoding on ", "ExecuteBatchError raised in core")
"""Beginnings of gRPC's log lines that are dropped. Clients cause these lines, and each has a
traceback. The first quotes metadata that is not text, although it may contain a key. The second
reports a client that has disconnected."""

log = logging.getLogger("paddlepool.server")


class GrpcServer:
    """The gRPC server. Create it in the event loop that serves; open() starts it."""

    def __init__(self, services: Services, gates: Gates) -> None:
        self._services = services
        self.port = 0
        self._closing: asyncio.Future[None] | None = None
        settings = services.settings
        messages = Messages()
        calls = Calls(services, gates)
        connections = settings.max_connections  # limits also the concurrent calls of all clients
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_server_line)
        options = {
            # A port in use is an error, unless several servers share it.
            "grpc.so_reuseport": int(services.lifecycle.accepts_when_ready),
            "grpc.max_receive_message_length": settings.infer_max_bytes,
            "grpc.http2.lookahead_bytes": WINDOW_BYTES,
            "grpc.http2.bdp_probe": 0,  # bandwidth probes would widen the window to megabytes
            "grpc.max_metadata_size": settings.header_max_bytes,
            "grpc.absolute_max_metadata_size": settings.header_max_bytes,
            "grpc.compression_enabled_algorithms_bitset": IDENTITY_ONLY,
            "grpc.max_allowed_incoming_connections": connections,
            "grpc.server_handshake_timeout_ms": _milliseconds(settings.header_timeout_seconds),
            # By default gRPC ends a connection after three pings within five minutes of each other.
            "grpc.http2.min_ping_interval_without_data_ms": PING_MILLISECONDS,
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.max_connection_idle_ms": _milliseconds(IDLE_STALLS * settings.send_stall_seconds),
        }
        pairs = tuple(options.items())
        self._server = grpc.aio.server(maximum_concurrent_rpcs=connections, options=pairs)
        tables: dict[str, dict[str, grpc.RpcMethodHandler]] = {SERVICE: {}, HEALTH: {}}
        for method in methods(services, messages):
            services.metrics.expect_route(method.route)
            if method.name == STREAM:
                handler = _stream(calls, method, messages)
            elif method.name == "Watch":
                handler = watched(services, calls, method)
            else:
                handler = grpc.stream_unary_rpc_method_handler(partial(calls.serve_unary, method))
            tables[method.service][method.name] = handler
        handlers = [grpc.method_handlers_generic_handler(*table) for table in tables.items()]
        for known in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            file = descriptor_pb2.FileDescriptorProto.FromString(known.serialized_pb)
            messages.pool.Add(file)
        names = (SERVICE, HEALTH, reflection.SERVICE_NAME)
        reflected = _reflection(calls, names, messages.pool)
        self._server.add_generic_rpc_handlers((*handlers, _SharedMemory(), reflected))

    async def open(self) -> None:
        """Bind the port and start serving. Raises ConfigError if the port cannot be bound."""
        settings = self._services.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            raise errors.ConfigError(f"cannot listen on {address} for gRPC") from None
        await self._server.start()
        log.info("listening for gRPC", extra={"address": f"{host}:{self.port}"})

    async def close(self) -> None:
        """Stop accepting calls; return when those in flight have ended.

        They are cancelled after the drain timeout. Another call of close() waits for the same end.
        """
        if self._closing is None:
            grace = self._services.settings.drain_timeout_seconds
            self._closing = asyncio.ensure_future(self._server.stop(grace))
        await asyncio.shield(self._closing)


def _is_server_line(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(CLIENT_LOG_LINES)


def _stream(calls: Calls, method: Method, messages: Messages) -> grpc.RpcMethodHandler:
    kind = messages["ModelStreamInferResponse"]

    async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for reply in calls.serve_stream(method, requests, context):
            response = kind()
            if isinstance(reply, Failed):
                response.error_message = reply.fault.detail
                response.infer_response.id = id_of(messages, reply.message)  # as Triton does
            else:
                response.infer_response.MergeFromString(reply)
            yield bytes(response.SerializeToString())

    return grpc.stream_stream_rpc_method_handler(handle)


def _reflection(calls: Calls, names: Sequence[str], pool: Any) -> grpc.GenericRpcHandler:
    """Build the handler for server reflection, which the library grpc_reflection answers.

    `names` are the services that it lists, `pool` has their descriptors. A malformed message, or
    one of more than REFLECTION_BYTES, ends the call.
    """
    library = reflection.aio.ReflectionServicer(names, pool)

    async def parsed(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async for message in messages:
            request = reflection_pb2.ServerReflectionRequest()
            try:
                if len(message) > REFLECTION_BYTES:
                    raise DecodeError
                request.ParseFromString(message)
            except DecodeError:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "the message is not a ServerReflectionRequest of at most "
                    f"{REFLECTION_BYTES} bytes; it has {len(message)}",
                )
            yield request

    async def handle(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        received = calls.received(messages, context, calls.reflections)
        async with calls.keep_open(context), aclosing(received) as raw:
            async for reply in library.ServerReflectionInfo(parsed(raw, context), context):
                yield bytes(reply.SerializeToString())

    table = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(handle)}
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, table)


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


class _SharedMemory(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Rejects shared memory with a clear error; gRPC alone would report an unknown method."""

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        if "SharedMemory" not in handler_call_details.method:
            return None

        async def refuse(_messages: AsyncIterator[bytes], context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SHARED_MEMORY)

        # A unary handler would receive the whole message before the call is rejected.
        return grpc.stream_stream_rpc_method_handler(refuse)


INFER, STREAM = "ModelInfer", "ModelStreamInfer"
PATHS: Mapping[str, str] = {
    INFER: "/v2/models/-/infer",
    STREAM: "/v2/models/-/infer",
    "ServerLive": "/v2/health/live",
    "ServerReady": "/v2/health/ready",
    "ModelReady": "/v2/models/-/ready",
    "ServerMetadata": "/v2",
    "ModelMetadata": "/v2/models/-",
    "ModelConfig": "/v2/models/-/config",
    "ModelStatistics": "/v2/models/-/stats",
    "RepositoryIndex": "/v2/repository/index",
    "RepositoryModelLoad": "/v2/repository/models/-/load",
    "RepositoryModelUnload": "/v2/repository/models/-/unload",
}
"""Maps the protocol's methods to the paths of their equivalents over HTTP."""
HEALTH = "grpc.health.v1.Health"
SERVERS = ("", SERVICE, HEALTH)
"""Service names that mean the server itself; other names are models and tasks."""
POLL_SECONDS = 1.0
Status = health_pb2.HealthCheckResponse


def methods(services: Services, messages: Messages) -> list[Method]:
    """Return the protocol's methods and those of HEALTH.

    STREAM answers each message of its stream like INFER.
    """
    infer = partial(_infer, services, messages)
    handlers = {name: partial(_serve, name, services, messages) for name in PATHS}
    handlers |= {INFER: infer, STREAM: infer}
    health: dict[str, UnaryHandler] = {"Check": partial(_check, services), "Watch": _parse}
    return [
        *(Method(name=name, path=path, handler=handlers[name]) for name, path in PATHS.items()),
        *(
            Method(name=name, path=PATHS["ServerReady"], handler=handler, service=HEALTH)
            for name, handler in health.items()
        ),
    ]


async def _infer(services: Services, messages: Messages, message: bytes, call: Call) -> bytes:
    reply, result = await infer_message(services, messages, message, within=call.within)
    call.metadata |= {name.lower(): text for name, text in output_headers(result.origin).items()}
    return reply


async def _serve(
    name: str, services: Services, messages: Messages, message: bytes, _call: Call
) -> bytes:
    try:
        request = messages[f"{name}Request"].FromString(message)
    except DecodeError:
        raise errors.InvalidTensor(f"the message is not a {name}Request") from None
    if getattr(request, "repository_name", ""):  # only some messages have this field
        raise errors.InvalidParameter("there is only one repository; it has no name")
    reply = messages[f"{name}Response"]()
    json_format.ParseDict(await _fields(name, services, request), reply)
    return bytes(reply.SerializeToString())


async def _fields(name: str, services: Services, request: Any) -> Mapping[str, Any]:
    """Call the method `name` with its request; return the fields of its reply, {} without any."""
    which = services, getattr(request, "name", ""), read_version(getattr(request, "version", ""))
    match name:
        case "ServerLive":
            return {"live": True}
        case "ServerReady":
            return {"ready": _holds(lambda: models.check_server(services))}
        case "ModelReady":
            return {"ready": _holds(lambda: models.check_model(*which))}
        case "ServerMetadata":
            return (await models.server_metadata(services)).model_dump()
        case "ModelMetadata":
            return models.metadata_of(*which).model_dump()
        case "ModelConfig":
            return {"config": models.config_of(*which)}
        case "ModelStatistics":
            return models.stats_of(*which) if request.name else await models.all_stats(services)
        case "RepositoryIndex":
            entries = await models.listed_versions(services, only_ready=request.ready)
            return {"models": [entry.model_dump() for entry in entries]}
    parameters = read_parameters(request.parameters)
    loads = name == "RepositoryModelLoad"
    change = models.load_model if loads else models.unload_model
    await change(services, request.model_name, parameters)
    return {}


def _holds(check: Callable[[], None]) -> bool:
    """Return whether `check` raises neither ModelNotReady nor ModelNotFound."""
    try:
        check()
    except (errors.ModelNotReady, errors.ModelNotFound):
        return False
    return True


async def _check(services: Services, message: bytes, _call: Call) -> bytes:
    return _written(_status(services, _service(message)))


async def _parse(message: bytes, _call: Call) -> bytes:
    """Return the message if it is a HealthCheckRequest, else raise InvalidTensor; see watched()."""
    _service(message)
    return message


def watched(services: Services, calls: Calls, method: Method) -> grpc.RpcMethodHandler:
    """Build the handler of Watch, which sends each new status of a service until the drain."""

    async def handle(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        service = _service(await calls.serve_unary(method, messages, context))
        last: int | None = None
        async with calls.keep_open(context):
            while True:
                # Read before the status, so that the last status of the server is NOT_SERVING.
                draining = services.lifecycle.draining
                try:
                    status = _status(services, service)
                except errors.ModelNotFound:
                    status = Status.SERVICE_UNKNOWN
                if status != last:
                    yield _written(status)
                    last = status
                if draining:
                    return
                await asyncio.sleep(POLL_SECONDS)

    return grpc.stream_stream_rpc_method_handler(handle)


def _service(message: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(message).service)
    except DecodeError:
        raise errors.InvalidTensor("the message is not a HealthCheckRequest") from None


def _status(services: Services, service: str) -> int:
    """Return the serving status of the server, a model or a task. Raises ModelNotFound."""
    try:
        if service in SERVERS:
            models.check_server(services)
        else:
            models.check_model(services, service)
    except errors.ModelNotReady:
        return int(Status.NOT_SERVING)
    return int(Status.SERVING)


def _written(status: int) -> bytes:
    return bytes(Status(status=status).SerializeToString())

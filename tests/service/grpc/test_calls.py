"""Calls over a real gRPC connection to a server in this process: who may ask, what is refused."""

import asyncio
import contextlib
import logging
import math
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from paddlepool.application import build_gates
from paddlepool.contracts.errors import InvalidTensor, Overloaded
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.service.api.services import Services
from paddlepool.settings.server import Settings
from tests.service.api.fakes import make_services

pytest.importorskip("grpc")

import grpc

from paddlepool.service.grpc.calls import Arrivals, headers_of
from paddlepool.service.grpc.messages import SERVICE, Messages
from paddlepool.service.grpc.server import WINDOW_BYTES, GrpcServer
from tests.engine.fakes import PATIENCE, FakeFactory, Gate, open_registry, wait_until

MESSAGES = Messages()
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Client:
    """Asks a server; replies come with their trailing metadata."""

    def __init__(self, channel: Any, services: Services, port: int) -> None:
        self.channel = channel
        self.services = services
        self.port = port

    def start(self, name: str, message: bytes, **options: Any) -> Any:
        """The call under way, a future."""
        ask = self.channel.unary_unary(f"/{SERVICE}/{name}")
        return ask.future(message, **{"timeout": PATIENCE, **options})

    def ask(self, name: str, message: bytes = b"", **options: Any) -> tuple[Any, dict[str, str]]:
        call = self.start(name, message, **options)
        reply = MESSAGES[f"{name}Response"].FromString(call.result())
        return reply, dict(call.trailing_metadata())

    def refused(self, name: str, message: bytes = b"", **options: Any) -> tuple[Any, str, Any]:
        """The code, the words and the metadata of a refusal."""
        call = self.start(name, message, **options)
        with pytest.raises(grpc.RpcError):
            call.result()
        return call.code(), call.details(), dict(call.trailing_metadata())


def code_at_end(stream: Any) -> grpc.StatusCode:
    """The code of a stream that ends instead of sending another message."""
    with pytest.raises(grpc.RpcError):
        next(stream)
    return stream.code()


Serve = Callable[..., contextlib.AbstractContextManager[Client]]


@pytest.fixture
def serve(tmp_path: Path, factory: FakeFactory, double: ModelFiles) -> Serve:
    """`serve(**settings)` runs a server of `double` on an event loop in a thread of its own."""

    @contextlib.asynccontextmanager
    async def running(options: dict[str, Any]) -> AsyncIterator[tuple[Services, int]]:
        settings = Settings(grpc_port=0, **{"max_connections": 64, **options})
        registry = open_registry(tmp_path, factory)
        await registry.load_all()
        with ThreadPoolExecutor(1) as operations:
            services = make_services(settings, registry, operations)
            server = GrpcServer(services, build_gates(settings, settings.keys()))
            await server.open()
            try:
                yield services, server.port
            finally:
                await server.close()
                await registry.close()

    @contextlib.contextmanager
    def serve(**options: Any) -> Iterator[Client]:
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(running(options)) as (services, port),
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield Client(channel, services, port)

    return serve


@pytest.fixture
def client(serve: Serve) -> Iterator[Client]:
    with serve() as client:
        yield client


def message(values: tuple[float, ...] = (1.0, 2.5), *, raw: bool = True, **fields: Any) -> Any:
    request = MESSAGES["ModelInferRequest"](model_name="double", **fields)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, len(values)])
    if raw:
        request.raw_input_contents.append(struct.pack(f"<{len(values)}f", *values))
    else:
        tensor.contents.fp32_contents.extend(values)
    return request


def infer(**options: Any) -> bytes:
    return bytes(message(**options).SerializeToString())


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "contents"])
def test_tensors_in_and_out(client: Client, raw: bool) -> None:
    """The metadata name model and group, as the headers of HTTP do."""
    request = message(raw=raw, id="seven")
    parameter(request, "sequence_id", int64_param=5)
    reply, metadata = client.ask("ModelInfer", request.SerializeToString())
    assert (reply.model_name, reply.model_version, reply.id) == ("double", "1", "seven")
    assert struct.unpack("<2f", reply.raw_output_contents[0]) == (2.0, 5.0)
    assert reply.parameters["ignored_parameters"].string_param == "sequence_id"
    assert metadata["x-model"] == "double@1"
    assert metadata["server-timing"].startswith("queue;dur=")


def bad(change: Any) -> bytes:
    request = message()
    change(request)
    return bytes(request.SerializeToString())


def parameter(request: Any, name: str, **value: Any) -> None:
    for field, content in value.items():
        setattr(request.parameters[name], field, content)


REFUSED: dict[str, tuple[bytes, str]] = {
    "no protobuf": (b"\xff\xff\xff", "the message is malformed"),
    "another message": (b"\x0a\x01\xff", "not a ModelInferRequest"),
    "shape": (bad(lambda r: r.inputs[0].shape.__setitem__(1, 3)), "is 12 bytes"),
    "contents and raw": (
        bad(lambda r: r.inputs[0].contents.fp32_contents.append(1)),
        "both data and binary_data_size",
    ),
    "no contents": (bad(lambda r: r.raw_input_contents.pop()), "neither contents nor"),
    "one too many": (bad(lambda r: r.raw_input_contents.append(b"")), "2 raw_input_contents"),
    "shared memory": (
        bad(lambda r: setattr(r.inputs[0].parameters["shared_memory_region"], "string_param", "r")),
        "shared memory is not supported",
    ),
    "parameter of nothing": (bad(lambda r: r.parameters["timeout"].Clear()), "has no value"),
    "version": (bad(lambda r: setattr(r, "model_version", "one")), "whole number"),
    "group": (
        bad(lambda r: parameter(r, "instance_group", string_param="z")),
        "no such instance group",
    ),
    "group by its alias": (
        bad(lambda r: parameter(r, "predictor", string_param="z")),
        "no such instance group",
    ),
}


@pytest.mark.parametrize(("sent", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(client: Client, sent: bytes, words: str) -> None:
    code, details, metadata = client.refused("ModelInfer", sent)
    assert (code, words in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    assert metadata["error-code"] in ("invalid_tensor", "invalid_parameter")
    assert client.ask("ModelInfer", infer())[0].id == ""


def test_a_model_that_is_not_there(client: Client) -> None:
    request = message()
    request.model_version = "7"
    assert client.refused("ModelInfer", request.SerializeToString())[0] is grpc.StatusCode.NOT_FOUND
    code, details, _ = client.refused("ModelReady", b"\xff")
    assert (code, "ModelReadyRequest" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    unknown = MESSAGES["ModelReadyRequest"](name="nobody").SerializeToString()
    assert not client.ask("ModelReady", unknown)[0].ready


def test_keys_are_asked_for_before_a_message_is_read(serve: Serve) -> None:
    """As over HTTP: health is open, model control has a key of its own."""
    with serve(api_keys=("k",), admin_key="a") as client:
        code, _, metadata = client.refused("ModelInfer", b"\xff")
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert metadata["error-code"] == "unauthorized"
        for offered in (("x-api-key", "k"), ("authorization", "Bearer k")):
            assert client.ask("ModelInfer", infer(), metadata=[offered])[0].model_name == "double"
        assert client.ask("ServerLive")[0].live
        index, own = "RepositoryIndex", [("x-api-key", "k")]
        assert client.refused(index, metadata=own)[0] is grpc.StatusCode.UNAUTHENTICATED
        admin = [("x-api-key", "a")]
        [entry] = client.ask(index, metadata=admin)[0].models
        assert (entry.name, entry.state) == ("double", "READY")
        named = MESSAGES["RepositoryIndexRequest"](repository_name="r").SerializeToString()
        assert "only one repository" in client.refused(index, named, metadata=admin)[1]
        stream = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        call = stream(iter([infer()]), timeout=PATIENCE)
        assert code_at_end(call) is grpc.StatusCode.UNAUTHENTICATED


def test_model_control_is_off_without_a_key(client: Client) -> None:
    assert client.refused("RepositoryIndex")[0] is grpc.StatusCode.PERMISSION_DENIED


def test_quotas_are_those_of_the_caller(serve: Serve) -> None:
    with serve(quota_requests_per_minute=2) as client:
        left = [client.ask("ModelInfer", infer())[1]["ratelimit-remaining"] for _ in range(2)]
        assert left[0] == "1"
        code, details, metadata = client.refused("ModelInfer", infer())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "quota of 2 requests" in details
        assert 0 < int(metadata["grpc-retry-pushback-ms"]) <= 60_000
        assert client.ask("ServerReady")[0].ready


def test_too_large(serve: Serve) -> None:
    sizes = {"infer_max_bytes": 10_000, "body_memory_bytes": 5_000, "infer_json_max_bytes": 1_000}
    with serve(**sizes) as client:
        exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.refused("ModelInfer", infer(values=(1.0,) * 3_000))[0] is exhausted
        code, details, _ = client.refused("ModelInfer", infer(values=(1.0,) * 500, raw=False))
        assert (code, "raw_input_contents" in details) == (exhausted, True)
        code, details, metadata = client.refused("ModelInfer", infer(values=(1.0,) * 2_000))
        assert (code, "the limit is 5000" in details) == (exhausted, True)
        assert "retry-after" not in metadata  # it would be refused again
        assert client.ask("ModelInfer", infer())[0].model_name == "double"


@pytest.fixture
def gate(client: Client, factory: FakeFactory) -> Iterator[Gate]:
    """The only predictor runs a call until the gate is opened; then that call is answered."""
    gate = factory.behaviour = Gate()
    running = client.start("ModelInfer", infer())
    gate.wait_entered()
    yield gate
    gate.open()
    assert running.result()


def test_a_full_queue(client: Client, gate: Gate) -> None:
    waiting = [client.start("ModelInfer", infer()) for _ in range(40)]
    wait_until(lambda: any(call.done() for call in waiting))
    gate.open()
    refused = [call for call in waiting if call.code() is grpc.StatusCode.UNAVAILABLE]
    metadata = dict(refused[0].trailing_metadata())
    assert int(metadata["retry-after"]) >= 1
    assert "limit" in refused[0].details()


def test_the_calls_deadline_is_the_requests(client: Client, gate: Gate) -> None:
    """No job waits for a client that waits no more, however long the server's own limit is."""
    late = client.start("ModelInfer", infer(), timeout=0.05)
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    gate.open()
    assert client.ask("ModelInfer", infer())
    assert len(gate.seen) == 2  # the running one and the last: the late one never ran


def test_a_client_that_leaves_cancels_its_work(client: Client, gate: Gate) -> None:
    leaving = client.start("ModelInfer", infer())
    [served] = client.services.registry.served()
    wait_until(lambda: served.groups()[0].queue_depth == 1)
    leaving.cancel()
    wait_until(lambda: served.groups()[0].queue_depth == 0)
    gate.open()
    counted = 'route="/inference.GRPCInferenceService/ModelInfer",status="499"'
    wait_until(lambda: counted in client.services.metrics.render()[0].decode())
    assert len(gate.seen) == 1


def still_open(connections: list[socket.socket]) -> int:
    """How many the server has not closed; what it has sent is read."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(4096):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)


@pytest.mark.parametrize("greeting", [b"", HTTP2], ids=["silent", "HTTP/2"])
def test_idle_connections_are_bounded(serve: Serve, greeting: bytes) -> None:
    short = {"header_timeout_seconds": 0.5, "send_stall_seconds": 0.05}
    with serve(max_connections=8, **short) as client, contextlib.ExitStack() as stack:
        connections = []
        for _ in range(40):
            connection = socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE)
            connections.append(stack.enter_context(connection))
            with contextlib.suppress(OSError):
                connection.sendall(greeting)
        wait_until(lambda: still_open(connections) <= 8)
        wait_until(lambda: still_open(connections) == 0)
        assert client.ask("ServerLive")[0].live


REFLECTION = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def large(numbers: int) -> bytes:
    return infer(values=(1.0,) * numbers)


@contextlib.contextmanager
def pausing_line(
    port: int, *, seconds: float, sent: float = math.inf, received: float = math.inf
) -> Iterator[tuple[int, Counter[str]]]:
    """Run a proxy for one connection; yields its port and the bytes it has carried each way. After
    `sent` bytes to the server, or `received` bytes from it, it pauses once for `seconds`."""
    carried: Counter[str] = Counter()
    ended = threading.Event()

    def pump(source: socket.socket, target: socket.socket, way: str, most: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                target.sendall(data)
                carried[way] += len(data)
                if carried[way] - len(data) < most <= carried[way]:
                    ended.wait(seconds)

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        far = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)

        def carry() -> None:
            with listener.accept()[0] as near:
                threading.Thread(target=pump, args=(near, far, "sent", sent)).start()
                pump(far, near, "received", received)

        threading.Thread(target=carry).start()
        yield int(listener.getsockname()[1]), carried
        ended.set()
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)


def test_a_slow_client_gets_all_of_its_reply(serve: Serve) -> None:
    """gRPC calls a connection idle as soon as the reply is written, long before it is taken."""
    with (
        serve(send_stall_seconds=0.4) as client,
        pausing_line(client.port, seconds=1.5, received=1_000_000) as (port, _),
        grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel,
    ):
        ask = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        assert len(ask(large(4_000_000), timeout=PATIENCE)) > 16_000_000


def test_replies_that_nobody_takes_have_a_limit(serve: Serve) -> None:
    """Until their calls are over; who asks for little is answered all the while."""
    numbers = 1_000_000
    sizes = {"infer_max_bytes": 7_000_000, "body_memory_bytes": 7_000_000}
    taking_nothing = [*UNLIMITED, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1)]
    with (
        serve(**sizes) as client,
        grpc.insecure_channel(f"127.0.0.1:{client.port}", options=taking_nothing) as channel,
    ):
        left = channel.stream_stream(f"/{SERVICE}/ModelInfer")(
            iter([large(numbers)]), timeout=PATIENCE
        )

        def refused() -> bool:
            try:
                channel.unary_unary(f"/{SERVICE}/ModelInfer")(large(numbers), timeout=PATIENCE)
            except grpc.RpcError as error:
                return "unread replies" in error.details()
            return False

        wait_until(refused)
        assert client.ask("ModelInfer", infer())[0].model_name == "double"
        left.cancel()
        wait_until(lambda: not refused())


def test_what_clients_send_is_not_in_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The library would repeat a key with a byte too many, and log a traceback for who leaves."""
    del client
    library = logging.getLogger("grpc._cython.cygrpc")
    library.error("Invalid encoding on %s", b"key\xff")
    library.error("ExecuteBatchError raised in core by servicer method [%s]", "x")
    library.error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_metadata_that_are_no_ascii_are_read() -> None:
    """Clients may send any bytes: an error of ours would come before the question of a key."""

    class Sent:
        def invocation_metadata(self) -> list[tuple[str, str]]:
            return [("x-api-key", "中"), ("x-request-id", "a-1")]

    headers = headers_of(Sent())
    assert headers.get("x-request-id") == "a-1"
    assert headers.get("x-api-key") not in (None, "中")


@pytest.mark.parametrize("path", ["grpc.health.v1.Health/Watch", REFLECTION])
def test_what_is_kept_open_without_a_key_leaves_room_for_work(serve: Serve, path: str) -> None:
    """Half of all calls: the next one is told to come again."""
    with (
        serve(max_connections=8, api_keys=("k",)) as client,
        contextlib.ExitStack() as stack,
    ):
        ask = client.channel.stream_stream(f"/{path}")
        ended = threading.Event()
        stack.callback(ended.set)

        def messages() -> Iterator[bytes]:
            yield b"" if "Health" in path else bytes((7 << 3 | 2, 0))  # list_services
            ended.wait(PATIENCE)

        for _ in range(4):
            call = ask(messages(), timeout=PATIENCE)
            stack.callback(call.cancel)
            next(call)
        assert code_at_end(ask(messages(), timeout=PATIENCE)) is grpc.StatusCode.UNAVAILABLE
        reply, _ = client.ask("ModelInfer", infer(), metadata=[("x-api-key", "k")])
        assert reply.model_name == "double"


def test_an_idle_stream_ends(serve: Serve) -> None:
    """One message at a time fits, so there is one stream; the next is refused until then."""
    sizes = {"infer_max_bytes": 1_000_000, "body_memory_bytes": 1_000_000}
    with (
        serve(**sizes, receive_timeout_seconds=1.0) as client,
        contextlib.ExitStack() as stack,
    ):
        ended = threading.Event()
        stack.callback(ended.set)

        def one_and_nothing() -> Iterator[bytes]:
            yield infer(id="a")
            ended.wait(PATIENCE)

        ask = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        held = ask(one_and_nothing(), timeout=PATIENCE)
        next(held)
        refused = ask(iter([infer(id="b")]), timeout=PATIENCE)
        assert code_at_end(refused) is grpc.StatusCode.UNAVAILABLE
        assert code_at_end(held) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert next(ask(iter([infer(id="b")]), timeout=PATIENCE))


def test_a_refused_message_of_a_stream_has_the_id_of_its_request(client: Client) -> None:
    """One that cannot be read has none."""
    ask = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    unknown = message(id="b")
    unknown.model_name = "unknown"
    sent = [infer(id="a"), unknown.SerializeToString(), b"\xff", infer(id="d")]
    kind = MESSAGES["ModelStreamInferResponse"]
    replies = [kind.FromString(reply) for reply in ask(iter(sent), timeout=PATIENCE)]
    assert [reply.infer_response.id for reply in replies] == ["a", "b", "", "d"]
    assert [bool(reply.error_message) for reply in replies] == [False, True, True, False]


def test_reflection_takes_names_and_nothing_larger(client: Client) -> None:
    """Each reply repeats its request."""
    ask = client.channel.stream_stream(f"/{REFLECTION}")
    for message in (bytes(1), b"\x22\xfd\xff\x03" + b"a" * 65_533, b"\x22" + b"a" * 80_000):
        with pytest.raises(grpc.RpcError) as caught:
            list(ask(iter([message]), timeout=PATIENCE))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"at most 65536 bytes; it has {len(message)}" in caught.value.details()
    largest = b"\x22\xfc\xff\x03" + b"a" * 65_532  # file_containing_symbol
    assert b"not found" in next(ask(iter([largest]), timeout=PATIENCE)).lower()


@pytest.mark.parametrize("path", [f"{SERVICE}/ModelInfer", REFLECTION])
def test_of_messages_that_have_no_place_little_is_taken(serve: Serve, path: str) -> None:
    """A window each, and as much again on the way: whole ones would be all of the memory."""
    size = 8 << 20
    sizes = {"infer_max_bytes": size, "body_memory_bytes": size}
    lines = []
    with serve(**sizes) as client, contextlib.ExitStack() as stack:
        for _ in range(4):
            line = pausing_line(client.port, seconds=PATIENCE, sent=size - 100_000)
            port, carried = stack.enter_context(line)
            lines.append(carried)
            address = f"127.0.0.1:{port}"
            channel = stack.enter_context(grpc.insecure_channel(address, options=UNLIMITED))
            call = channel.stream_stream(f"/{path}")(iter([bytes(size)]), timeout=PATIENCE)
            stack.callback(call.cancel)
        time.sleep(0.8)  # a place may be lost, and taken by the next, after a second
        received = sorted(carried["sent"] for carried in lines)
    assert received[0] > 0
    assert sum(received[:-1]) <= 3 * 2 * WINDOW_BYTES


async def of(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def silent(begun: asyncio.Event) -> AsyncIterator[bytes]:
    begun.set()
    await asyncio.Event().wait()
    yield b""


async def test_the_end_of_a_cancelled_call_is_no_missing_message() -> None:
    """Its messages end just before it is cancelled."""
    arriving = asyncio.create_task(Arrivals(1, seconds=PATIENCE).next(of()))
    await asyncio.sleep(0.01)
    arriving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await arriving


async def test_a_message_has_its_time_and_a_call_waits_as_long_for_a_place() -> None:
    arrivals = Arrivals(1, seconds=0.05)
    begun = asyncio.Event()
    with pytest.raises(TimeoutError):
        await arrivals.next(silent(begun))
    assert begun.is_set()
    for _ in range(3):
        assert await arrivals.next(of(b"a", b"b")) == b"a"
        with pytest.raises(InvalidTensor):
            await arrivals.next(of())
    async with arrivals._places:
        with pytest.raises(Overloaded, match="1 messages"):
            await arrivals.next(of(b"a"))
    assert await arrivals.next(of(b"a")) == b"a"

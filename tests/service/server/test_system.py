"""A server that systemd started, its socket and its notices; how late the event loop wakes."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from paddlepool.contracts.errors import ConfigError
from paddlepool.service.server.system import (
    INTERVAL_SECONDS,
    PoolServer,
    bind,
    passed_listener,
    watch_loop,
)
from paddlepool.settings.server import Settings
from tests.e2e.process import GATED, PATIENCE, Server, asking, running, wait_until
from tests.service.api.fakes import make_app, make_services

READY = b"READY=1\nWATCHDOG=1"


def test_the_unspecified_ipv6_address_accepts_ipv4_too() -> None:
    """docs/orchestration.md promises it for clusters with both."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("SKIPPED: this machine has no IPv6")
    with bind("::", 0) as listener:
        listener.listen()
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1]), PATIENCE).close()


@contextlib.contextmanager
def users(server: Server) -> Iterator[list[object]]:
    """Two users send requests without pause, one of them on a new connection each time. A reply is
    the name of the replica that answered 200, or else what was received."""
    replies: list[object] = []

    def use(client: httpx.Client, **headers: str) -> None:
        try:
            reply = client.get("/v2/models/tiny/ready", headers=headers)
            failed = reply.status_code != 200
            replies.append(reply.text if failed else reply.headers["X-Replica"])
        except httpx.TransportError as error:
            replies.append(error)
        time.sleep(0.001)

    with asking(server, 1, use), asking(server, 1, partial(use, connection="close")):
        yield replies


@contextlib.contextmanager
def notices(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What the next server tells its manager."""
    messages: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(directory / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(directory / "notify"))
        thread = threading.Thread(
            target=lambda: messages.extend(iter(lambda: receiver.recv(99), b""))
        )
        thread.start()
        try:
            yield messages
        finally:
            receiver.shutdown(socket.SHUT_RD)
            thread.join()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The model of the server `new` opens when this file is there."""
    return tmp_path / "gate"


@pytest.fixture
def start(
    tiny_model_repository: Path, tmp_path: Path, gate: Path
) -> Iterator[Callable[..., Server]]:
    """Starts the server `old` or `new`, which are passed the same socket."""
    for name in ("old", "new"):
        shutil.copytree(tiny_model_repository, tmp_path / name / "models")
    (tmp_path / "new" / "models" / "tiny" / "config.toml").write_text(GATED.format(gate=gate))
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

        def start(name: str, **settings: object) -> Server:
            server = stack.enter_context(
                running(
                    tmp_path / name / "models",
                    tmp_path / name,
                    settings={"replica": name, **settings},
                    module="tests.e2e.altered_server",
                    passed=listener,
                    loaded=False,
                )
            )
            assert server.port == listener.getsockname()[1]
            return server

        yield start


@pytest.mark.e2e
@pytest.mark.paddle
def test_the_next_server_takes_over_the_socket_without_a_lost_request(
    start: Callable[..., Server], gate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no connection until its models answer, and is told of as ready then."""
    with contextlib.ExitStack() as stack:
        messages = {"old": stack.enter_context(notices(tmp_path / "old", monkeypatch))}
        old = start("old")
        wait_until(lambda: READY in messages["old"])
        replies = stack.enter_context(users(old))
        messages["new"] = stack.enter_context(notices(tmp_path / "new", monkeypatch))
        new = start("new")
        wait_until(lambda: len(new.children()) >= 3)
        before = len(replies)
        wait_until(lambda: len(replies) > before + 100)
        assert set(replies) == {"old"}, "it took connections before its model was loaded"
        gate.touch()
        wait_until(lambda: READY in messages["new"])
        wait_until(lambda: "new" in replies)
        assert old.stop() == 0
        assert messages["old"].count(READY) >= 2, "no watchdog's notice each second"
        assert messages["old"][-1] == b"STOPPING=1"
        before = len(replies)
        wait_until(lambda: len(replies) > before + 100)
        assert set(replies) == {"old", "new"}
        assert set(replies[-50:]) == {"new"}


@pytest.mark.e2e
@pytest.mark.paddle
def test_the_next_server_shares_the_grpc_port(start: Callable[..., Server], gate: Path) -> None:
    """Calls on an open channel move to it when the old server stops."""
    grpc = pytest.importorskip("grpc")
    health = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")
    old = start("old", grpc_port=0)
    address = old.wait_logged(event="listening for gRPC")["address"]

    def answering(channel: Any) -> str:
        request = health_pb2.HealthCheckRequest(service="tiny")
        check = health.HealthStub(channel).Check
        reply, call = check.with_call(request, timeout=PATIENCE, wait_for_ready=True)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        return str(dict(call.trailing_metadata())["x-replica"])

    def answering_anew() -> str:
        options = [("grpc.use_local_subchannel_pool", 1)]  # or it shares a connection
        with grpc.insecure_channel(address, options=options) as channel:
            return answering(channel)

    with grpc.insecure_channel(address) as channel_before:
        assert answering(channel_before) == "old"
        port = int(address.rpartition(":")[2])
        given_up = start("new", grpc_port=port, drain_delay_seconds=60)
        wait_until(lambda: len(given_up.children()) >= 3)
        assert given_up.stop() == 0
        assert "listening for gRPC" not in given_up.text(), "it never had a model"
        assert "requests are accepted for 0.0 s more" in given_up.text()
        new = start("new", grpc_port=port)
        wait_until(lambda: len(new.children()) >= 3)
        assert {answering_anew() for _ in range(20)} == {"old"}, "it listened before it was ready"
        gate.touch()
        new.wait_logged(event="listening for gRPC")
        wait_until(lambda: answering_anew() == "new")
        assert answering(channel_before) == "old"
        assert old.stop() == 0
        assert answering(channel_before) == "new"
        assert {answering_anew() for _ in range(20)} == {"new"}


TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


@pytest.mark.parametrize(
    ("count", "family", "kind"),
    [(2, socket.AF_INET, TCP), (1, socket.AF_UNIX, TCP), (1, socket.AF_INET, UDP)],
)
def test_only_one_tcp_socket_is_taken(
    count: int,
    family: socket.AddressFamily,
    kind: socket.SocketKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What another process was passed is none."""
    with socket.socket(family, kind) as sent:
        monkeypatch.setattr("paddlepool.service.server.system.FIRST_PASSED", os.dup(sent.fileno()))
        monkeypatch.setenv("LISTEN_FDS", str(count))
        monkeypatch.setenv("LISTEN_PID", "1")
        assert passed_listener() is None
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        with pytest.raises(ConfigError, match="one listening TCP socket"):
            passed_listener()


async def test_a_step_that_blocks_the_loop_is_seen() -> None:
    """By the rest of it after the timer was due; never as less than nothing."""
    seen: list[float] = []
    watching = asyncio.create_task(watch_loop(seen.append))
    loop = asyncio.get_running_loop()
    loop.call_later(INTERVAL_SECONDS / 2, time.sleep, INTERVAL_SECONDS)
    await asyncio.sleep(3 * INTERVAL_SECONDS)
    watching.cancel()
    assert seen[0] >= 0.4 * INTERVAL_SECONDS
    assert min(seen) >= 0


async def test_a_signal_drains_the_server_and_is_not_raised_again() -> None:
    """`handle_exit`, `on_tick` and `shutdown` replace methods that uvicorn does not document."""
    services = make_services(Settings(drain_delay_seconds=0))
    closed: list[bool] = []

    async def close() -> None:
        closed.append(services.lifecycle.draining)

    services.lifecycle.closers.append(close)
    raised: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: raised.append(number))
    try:
        with bind("127.0.0.1", 0) as listener:
            listener.listen()
            config = uvicorn.Config(make_app(services=services), ws="none", log_config=None)
            serving = asyncio.create_task(PoolServer(config, services).serve([listener]))
            port = listener.getsockname()[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                assert (await client.get("/v2/health/live")).status_code == 200
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(serving, PATIENCE)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert (closed, raised) == ([True], [])

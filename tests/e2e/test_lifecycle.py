"""How a server starts, refuses to start, drains and ends."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from paddlepool.service.server.system import OWN_DESCRIPTORS
from paddlepool.tasks.codecs.program import SANDBOX
from tests.e2e.probe import LIVE
from tests.e2e.process import (
    GATED,
    PATIENCE,
    ROOT,
    Server,
    alive,
    read_all,
    running,
    slow_server,
    status_of,
    wait_until,
)
from tests.ran import ran

pytestmark = pytest.mark.e2e


class Clients:
    """Threads that send one request after the other until the server refuses connections."""

    def __init__(self, server: Server, count: int, path: str, body: object = None) -> None:
        self._server = server
        self._path = path
        self._body = json.dumps(body).encode()
        self.answers: list[int] = []
        self.broken: list[str] = []
        """Requests without an answer, after which the client was refused."""
        self.dropped: list[str] = []
        """Requests without an answer, after which the client was answered again."""
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self, number: int) -> None:
        broken: list[str] = []
        with self._server.client() as client:
            for count in range(10_000):
                name = f"client-{number}-{count}"
                try:
                    headers = {"X-Request-ID": name, "Content-Type": "application/json"}
                    reply = client.post(self._path, content=self._body, headers=headers)
                except httpx.ConnectError:
                    break
                except httpx.TransportError:
                    broken.append(name)
                    continue
                self.answers.append(reply.status_code)
                self.dropped.extend(broken)
                broken.clear()
        self.broken.extend(broken)

    def all_were_answered(self) -> None:
        """Wait for the end of the server; no request that it had accepted is lost."""
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        assert self._server.process.wait(PATIENCE) == 0
        assert set(self.answers) == {200}
        assert self.dropped == [], "connections were dropped while others were served"
        # Those that the system had accepted and the server had not when it closed its socket.
        accepted = {line.get("request_id") for line in self._server.log()}
        assert [name for name in self.broken if name in accepted] == []


def test_sigterm_under_load_loses_no_accepted_request(tmp_path: Path) -> None:
    """Readiness falls at once, serving goes on for the delay, what is in flight is answered."""
    with slow_server(tmp_path, drain_delay_seconds=4) as server:
        clients = Clients(server, 16, "/slow?seconds=0.1")
        with server.client() as client:
            wait_until(lambda: len(clients.answers) >= 32)
            server.process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            while client.get("/v2/health/ready").json() != {"error": "The server is stopping."}:
                assert time.monotonic() - started < 2, "half of the delay has passed"
            assert client.get("/v2/health/live").status_code == 200
        before = len(clients.answers)
        clients.all_were_answered()
        assert time.monotonic() - started > 3.9, "it did not wait for balancers"
        assert len(clients.answers) > before, "it did not go on serving"
        messages = [line["event"] for line in server.log() if line["event"].startswith("stopping")]
        assert len(messages) == 1, messages
        assert re.fullmatch(r"stopping; requests are accepted for \d\.\d s more", messages[0])


@pytest.mark.paddle
def test_sigterm_answers_what_waits_for_a_predictor(tmp_path: Path) -> None:
    """Also if the signal reaches the whole process group, as from `timeout`."""
    shutil.copytree(ROOT / "model_repo" / "emotion", tmp_path / "models" / "emotion")
    settings = {"timeout_default_ms": 30_000}  # the machine may be busy
    with running(tmp_path / "models", tmp_path, settings=settings) as server:
        text = "妈妈说想和我聊天，她一定是有难过的事了。我要上课，所以我好难过。"
        assert server.wait_logged(at="/sentiment")["event"].endswith(" answers")
        clients = Clients(server, 4, "/sentiment", {"inputs": [text] * 16})
        wait_until(lambda: len(clients.answers) >= 16)
        children = server.children()
        for pid in (*children, server.process.pid):
            os.kill(pid, signal.SIGTERM)
        clients.all_were_answered()
        wait_until(lambda: not any(map(alive, children)))


def test_what_outlasts_the_drain_is_told_so(tmp_path: Path) -> None:
    with slow_server(tmp_path, drain_timeout_seconds=1) as server:
        with server.client() as client, ThreadPoolExecutor(1) as thread:
            pending = thread.submit(client.post, "/slow?seconds=50")
            wait_until(lambda: client.get("/slow/counts").json()["started"] == 1)
            started = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - started < 25
            reply = pending.result(PATIENCE)
        assert reply.status_code == 503
        assert reply.json()["code"] == "shutting_down"
        assert not any("exception" in line for line in server.log())


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with slow_server(tmp_path, drain_delay_seconds=50) as server:
        server.process.send_signal(signal.SIGTERM)
        with server.client() as client:
            stopping = {"error": "The server is stopping."}
            wait_until(lambda: client.get("/v2/health/ready").json() == stopping)
        started = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - started < 25
        assert not any("Traceback" in line["event"] for line in server.log())


@pytest.mark.usefixtures("hangups_count")
def test_a_terminal_that_closes_drains_it(tmp_path: Path) -> None:
    """SIGHUP drains like SIGTERM. It comes twice, also to the children."""
    with slow_server(tmp_path, drain_delay_seconds=1) as server:
        clients = Clients(server, 4, "/slow?seconds=0.1")
        wait_until(lambda: len(clients.answers) >= 8)
        for pid in (server.process.pid, *server.children(), server.process.pid):
            os.kill(pid, signal.SIGHUP)
        clients.all_were_answered()


def test_ctrl_c_does_not_wait_for_balancers(tmp_path: Path) -> None:
    with slow_server(tmp_path, drain_delay_seconds=50) as server:
        started = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - started < 25


@pytest.mark.paddle
def test_no_child_outlives_a_server_that_is_killed(
    tiny_model_repository: Path, tmp_path: Path
) -> None:
    with running(tiny_model_repository, tmp_path, settings={"codec_processes": 1}) as server:
        children = server.children()
        commands = [Path(f"/proc/{pid}/cmdline").read_text("utf-8") for pid in children]
        assert len(children) >= 2
        assert sum(SANDBOX in command for command in commands) == 1, "a spare was left"
        server.stop(signal.SIGKILL)
        wait_until(lambda: not any(map(alive, children)))


@pytest.mark.paddle
def test_the_socket_answers_while_models_load(repository: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (repository / "tiny" / "config.toml").write_text(GATED.format(gate=gate))
    with (
        running(repository, tmp_path, module="tests.e2e.altered_server", loaded=False) as server,
        server.client() as client,
    ):
        assert client.get("/v2/health/live").status_code == 200
        assert client.get("/v2/health/ready").status_code == 503
        assert client.get("/v2/models/tiny/ready").status_code == 503
        assert client.get("/v2/models/tiny").status_code == 503
        gate.touch()
        server.wait_logged(event="loaded")
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/v2/models/tiny/ready").status_code == 200
        assert client.get("/v2/models/tiny/versions/1/ready").status_code == 200
        assert client.get("/v2/models/tiny").json() == {
            "name": "tiny",
            "versions": ["1"],
            "platform": "paddle_inference",
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, -1, -1]}],
            "outputs": [
                {"name": "scores", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "mean", "datatype": "FP32", "shape": [-1, 4]},
            ],
        }


def test_the_limit_of_open_files_is_raised_for_the_connections(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    few, settings = OWN_DESCRIPTORS + 20, {"max_connections": 20}

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, few))

    with (
        running(tmp_path / "models", tmp_path, before=limited, settings=settings) as server,
        contextlib.ExitStack() as idle,
    ):
        for _ in range(21):
            idle.enter_context(server.connect())
        with server.connect() as connection:
            connection.sendall(LIVE)
            reply = read_all(connection)
    assert status_of(reply) == 503
    assert json.loads(reply.partition(b"\r\n\r\n")[2])


def stderr_closed() -> None:
    os.close(2)


def all_closed() -> None:
    os.closerange(0, 3)


def disk_full() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    os.dup2(full, 2)


@pytest.mark.parametrize("streams", [stderr_closed, all_closed, disk_full])
def test_a_log_that_cannot_be_written_keeps_nobody_from_being_served(
    streams: Callable[[], None], tmp_path: Path
) -> None:
    """No socket takes the number of a closed stream either, which libraries print to."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "paddlepool.cli", "serve", "--model-repository", str(tmp_path)]
    environment = os.environ | {"PADDLEPOOL_DRAIN_DELAY_SECONDS": "0", "PYTHONPATH": str(ROOT)}

    def start(port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, "--port", str(port)],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=streams,
        )

    def live() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as pending:
            pending.sendall(LIVE.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            return status_of(read_all(pending)) == 200
        return False

    with start(port) as server:
        wait_until(lambda: server.poll() is not None or live())
        for _ in range(100):
            assert live()
        for number in range(3):
            file = os.readlink(f"/proc/{server.pid}/fd/{number}")  # noqa: PTH115
            assert file in ("/dev/null", "/dev/full")
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    with start(70_000) as refused:
        assert refused.wait(PATIENCE) == 3


FORKED = """
import json, os, resource, sys
import paddlepool.main
from paddlepool.cli import main, serve
for each in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.dup2(writing, 2)
        os.environ.update(each["settings"])
        for name, limit in each["limits"].items():
            resource.setrlimit(getattr(resource, name), (limit, limit))
        os._exit(main(["serve"]))
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text.splitlines()]))
"""
"""Starts a server for each set of settings and limits: one process imports for all of them."""
REFUSED: dict[str, tuple[dict[str, str], dict[str, int], str]] = {
    "setting": ({"backlog": "0"}, {}, "PADDLEPOOL_BACKLOG: .*greater than or equal to 1.*'0'"),
    "repository": (
        {"model_repository": "a b"},
        {},
        "there is no model repository at 'a b'.*: paddlepool pull u2netp --repository 'a b' && "
        "paddlepool serve --model-repository 'a b'$",
    ),
    "task": ({"default_models": "segmnt=u2netp"}, {}, "'segmnt'"),
    "no key file": ({"api_keys_file": "keys"}, {}, "keys"),
    "no keys": ({"api_keys_file": "blank"}, {}, "PADDLEPOOL_API_KEYS_FILE"),
    "port": ({"port": "{taken}"}, {}, "cannot listen on 127.0.0.1:{taken}"),
    "gRPC's port": ({"grpc_port": "{taken}"}, {}, "cannot listen on 127.0.0.1:{taken}"),
    "open files": (
        {},
        {"RLIMIT_NOFILE": OWN_DESCRIPTORS},
        f"the limit of open files is {OWN_DESCRIPTORS}.*"
        f"PADDLEPOOL_MAX_CONNECTIONS=1000 needs {OWN_DESCRIPTORS + 1_000}",
    ),
    # It does not wait for child processes that can never start.
    "memory": ({}, {"RLIMIT_AS": 1_200_000 << 10}, "space is 1200000 KiB, .* need 1310720 KiB"),
    "file size": ({}, {"RLIMIT_FSIZE": 100 << 10}, "file size is 100 KiB, .* need 65536 KiB"),
}


def test_what_is_wrong_ends_the_start_with_3(tmp_path: Path) -> None:
    (tmp_path / "blank").write_bytes(b"\n")
    (tmp_path / "models").mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PADDLEPOOL_")}
    environment |= {"PADDLEPOOL_MODEL_REPOSITORY": "models", "PADDLEPOOL_PORT": "0"}
    environment["PYTHONPATH"] = str(ROOT)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        used_port = str(listener.getsockname()[1])
        starts = [
            {
                "settings": {
                    f"PADDLEPOOL_{name.upper()}": value.replace("{taken}", used_port)
                    for name, value in settings.items()
                },
                "limits": limits,
            }
            for settings, limits, _ in REFUSED.values()
        ]
        command = [sys.executable, "-W", "ignore", "-c", FORKED, json.dumps(starts)]
        done = ran(command, env=environment, cwd=tmp_path)
    for (name, (_, _, words)), line in zip(REFUSED.items(), done.stdout.splitlines(), strict=True):
        code, messages = json.loads(line)
        assert (name, code, len(messages)) == (name, 3, 1), messages
        assert re.search(words.replace("{taken}", used_port), messages[0]), (name, messages)

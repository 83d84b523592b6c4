"""Replicas of the server on this machine, behind HAProxy as in compose, or under Ray Serve."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import yaml
from harness import HOST, ROOT, Server, free_port, is_ready, running_program, running_server

CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
COMPOSE = ROOT / "docker-compose.yml"
UNLIMITED = 1_000_000
PYTHON = ROOT / ".venv-ray" / "bin" / "python"
INGRESSES: Mapping[str, Mapping[str, str]] = {
    "proxy": {},
    "HAProxy": {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response junk-response 503",
        "RAY_SERVE_HAPROXY_RETRIES": "3",
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "1114112",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    },
}
"""The ingress in front of the replicas, and the environment of Ray's processes that selects it."""

RAY_START_SECONDS = 180.0


class Replica(contextlib.ExitStack):
    """One server on a fixed port; a successor can replace it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.port = free_port()
        self._environment = {"PADDLEPOOL_DRAIN_DELAY_SECONDS": "3", **environment}

    def start(self) -> None:
        """Return when it is ready. Raises RuntimeError if it does not become ready."""
        server = running_server(environment=self._environment, port=self.port)
        self.pid = self.enter_context(server).pid

    def replace(self, *, drained: bool) -> float:
        """Drain or kill it, and start its successor. Returns the seconds until that one is
        ready."""
        if not drained:
            os.kill(self.pid, signal.SIGKILL)
        self.close()
        began = time.perf_counter()
        self.start()
        return time.perf_counter() - began


@contextlib.contextmanager
def replicas(count: int, environment: Mapping[str, str]) -> Iterator[list[Replica]]:
    """Run this many ready replicas within the block."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Replica(environment)) for _ in range(count)]
        # One after another: starting together, they would compete for the cores.
        for replica in started:
            replica.start()
        yield started


@contextlib.contextmanager
def balancer(
    executable: Path,
    ports: list[int],
    directory: Path,
    *,
    requests: int = UNLIMITED,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Server]:
    """Run HAProxy in front of these ports.

    `directory` gets its log, haproxy.log. With PADDLEPOOL_TLS_CERTIFICATE in the environment, it
    listens for TLS on the next port.
    """
    port = free_port()
    file = directory / "haproxy.cfg"
    configuration = local_configuration(
        ports, port=port, status_port=free_port(), requests=requests
    )
    file.write_text(configuration, "utf-8")
    service = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]["balancer"]
    own = {"GLIBC_TUNABLES": service["environment"]["GLIBC_TUNABLES"]}
    command = [str(executable), "-W", "-f", str(file)]
    with running_program(
        command,
        lambda: is_ready(port),
        environment=own | dict(environment),
        log_file=directory / "haproxy.log",
        timeout=20.0,
    ) as process:
        yield Server(port, process.pid)


def local_configuration(
    ports: list[int], *, port: int, status_port: int, requests: int = UNLIMITED
) -> str:
    """Return the committed configuration with local addresses and without a resolver.

    It also allows this many requests from one address in ten seconds: all clients here have the
    same address.
    """
    servers = "\n".join(f"    server replica{n} {HOST}:{at}" for n, at in enumerate(ports, 1))
    changes = (
        (r"bind :8080", f"bind {HOST}:{port}"),
        (r"bind :8443", f"bind {HOST}:{port + 1}"),
        (r"bind :8404", f"bind {HOST}:{status_port}"),
        (r"(?m)^    server-template .*$", servers),
        (r"(?ms)^# /etc/resolv.conf.*?\n\n", ""),
        *(
            (f"/usr/local/etc/haproxy/{name}", str(CONFIGURATION.with_name(name)))
            for name in ("429.json", "503.http", "504.http")
        ),
        (r"(?<=http_req_rate\(0\) gt )\d+", str(requests)),
        (r"(?<=conn_rate\(0\) gt )\d+", str(UNLIMITED)),
        (r"(?<=conn_cur\(0\) gt )\d+", str(UNLIMITED)),
    )
    text = CONFIGURATION.read_text("utf-8")
    for pattern, replacement in changes:
        text, times = re.subn(pattern, replacement, text)
        if times != 1:
            raise RuntimeError(f"{pattern!r} stands {times} times in {CONFIGURATION.name}")
    return text


@contextlib.contextmanager
def ray_up(
    *options: str, environment: Mapping[str, str]
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run Ray Serve within the block; yields its port and process once the first replica answers.

    Raises RuntimeError, with the end of its output, if none answers.
    """
    port = free_port()
    command = [PYTHON, "-m", "app.cli", "ray", "up", "--host", HOST, "--port", str(port), *options]
    with (
        tempfile.TemporaryDirectory(prefix="ray") as directory,
        running_program(
            command,
            lambda: is_ready(port),
            environment={"RAY_TMPDIR": directory, **environment},
            timeout=RAY_START_SECONDS,
        ) as process,
    ):
        yield port, process

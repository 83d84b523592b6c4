"""Replicas of the server behind HAProxy on this machine, configured as in compose."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import yaml
from harness import HOST, ROOT, STOP_SECONDS, free_port, is_ready, running_program

CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
COMPOSE = ROOT / "docker-compose.yml"
START_SECONDS = 120.0
UNLIMITED = 1_000_000


@dataclass(slots=True)
class Replica:
    """One server process on a port of its own, which a successor takes over."""

    port: int
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        settings = {
            "PADDLEPOOL_HOST": HOST,
            "PADDLEPOOL_PORT": str(self.port),
            "PADDLEPOOL_DRAIN_DELAY_SECONDS": "3",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "serve"],
            cwd=ROOT,
            env=os.environ | settings | dict(self.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_ready(self) -> float:
        """Seconds it took. Raises RuntimeError when it never is."""
        began = time.perf_counter()
        while not is_ready(self.port):
            if time.perf_counter() - began > START_SECONDS:
                raise RuntimeError(f"a replica was not ready within {START_SECONDS:.0f} s")
            time.sleep(0.1)
        return time.perf_counter() - began

    def end(self, *, drained: bool) -> None:
        """Drained, or as the out-of-memory killer does it: no word."""
        self.process.send_signal(signal.SIGTERM if drained else signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def replace(self, *, drained: bool) -> float:
        """End it and start its successor; seconds until that is ready."""
        self.end(drained=drained)
        self.start()
        return self.wait_ready()


@contextlib.contextmanager
def replicas(count: int, environment: Mapping[str, str]) -> Iterator[list[Replica]]:
    """So many, all ready; ended with the block."""
    started = [Replica(free_port(), environment) for _ in range(count)]
    try:
        for replica in started:  # one after the other: together they would fight for the cores
            replica.start()
            replica.wait_ready()
        yield started
    finally:
        for replica in started:
            if hasattr(replica, "process"):
                replica.end(drained=False)


@contextlib.contextmanager
def balancer(
    executable: Path,
    ports: list[int],
    directory: Path,
    *,
    requests: int = UNLIMITED,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[int]:
    """HAProxy before these ports; its own port. `directory` gets its log, haproxy.log. With
    PADDLEPOOL_TLS_CERTIFICATE in the environment it listens for TLS on the next port."""
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
    ):
        yield port


def local_configuration(
    ports: list[int], *, port: int, status_port: int, requests: int = UNLIMITED
) -> str:
    """The committed configuration with other addresses, no resolver, and so many requests of one
    address in ten seconds: here all clients have the same one. Otherwise the same."""
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

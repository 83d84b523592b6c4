"""A complete server in its own process, and a function that merges several servers' metrics."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paddlepool.settings.server import PREFIX, Settings

HOST = "127.0.0.1"
GRPC_PORT = f"{PREFIX}GRPC_PORT"
TRUSTED_PROXIES = f"{PREFIX}TRUSTED_PROXIES"
KILL_AFTER_SECONDS = 5.0
"""Time after the drain timeout before the process is killed."""


class LocalServer:
    """`paddlepool serve` on a free loopback port, started at once; it ends with this process.

    Its settings come from this process's environment; see server_environment(). If the server ends
    without a drain, this process ends too, with code 1. Otherwise this process would answer 503
    faster than the other replicas answer, and so attract their requests.
    """

    def __init__(self, settings: Settings) -> None:
        with socket.create_server((HOST, 0)) as probe:  # finds a free port
            self.port = int(probe.getsockname()[1])
        self._seconds_to_end = seconds_to_end(settings)
        self._draining = False
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "paddlepool.cli.serve",
                *("--host", HOST, "--port", str(self.port)),
            ],
            stdin=subprocess.PIPE,
            env=server_environment(os.environ),
        )
        threading.Thread(target=self._exit_with_server, name="server-watch", daemon=True).start()

    def _exit_with_server(self) -> None:
        code = self._process.wait()
        if not self._draining:
            print(f"the server ended with code {code}; see its log", file=sys.stderr, flush=True)
            os._exit(1)

    async def drain(self) -> None:
        """Let the server finish its requests and end; kill it after seconds_to_end() seconds."""
        self._draining = True
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, self._seconds_to_end)
        except subprocess.TimeoutExpired:
            self._process.kill()


def seconds_to_end(settings: Settings) -> float:
    """Return the seconds after which LocalServer.drain() kills a server with these settings."""
    return settings.drain_timeout_seconds + KILL_AFTER_SECONDS


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `environment` for a server behind a proxy on HOST.

    The drain delay is 0, because the proxy takes a replica out of rotation before it is drained.
    The proxy is trusted, because it passes on the client's address. The gRPC port is removed: the
    proxy does not forward gRPC, and all replicas of a machine would bind the same port.
    """
    trusted = [environment[TRUSTED_PROXIES]] if environment.get(TRUSTED_PROXIES) else []
    changed = {f"{PREFIX}DRAIN_DELAY_SECONDS": "0", TRUSTED_PROXIES: ",".join([*trusted, HOST])}
    return {name: v for name, v in environment.items() if name != GRPC_PORT} | changed


def merged(texts: Mapping[str, str], *, label: str) -> bytes:
    """Merge servers' texts in Prometheus' format; each sample gets the server's name as `label`."""
    families: dict[str, Metric] = {}
    for server, text in texts.items():
        for family in text_string_to_metric_families(text):
            empty = Metric(family.name, family.documentation, family.type)
            families.setdefault(family.name, empty).samples += [
                sample._replace(labels={label: server} | sample.labels) for sample in family.samples
            ]
    # generate_latest() calls only collect(), so this needs no registry.
    return generate_latest(cast(CollectorRegistry, SimpleNamespace(collect=families.values)))

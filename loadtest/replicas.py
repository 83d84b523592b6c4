"""Count the requests that clients lose while servers die and are replaced.

    .venv/bin/python loadtest/replicas.py [proxy | ray] [--replicas 3] [--seconds 60]

Four users request masks and emotions, and every answer is compared with that of an undisturbed
server. `proxy`: replicas behind HAProxy. Every ten seconds one is killed or drained, and started
again. Then all are drained and replaced, one after another. `ray`: Ray Serve. Every ten seconds the
server below one actor is killed. Exit code 1: a wrong answer, or a request without an answer. Ray's
own proxy does not retry, so there each kill may cost the requests of the killed server.
"""

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

import yaml
from cases import mask_request, picture, text_request
from harness import (
    HOST,
    ROOT,
    Server,
    descendants,
    free_port,
    request,
    running_program,
    running_server,
    send,
    wait_until,
)
from soak_traffic import Case, Traffic

CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
COMPOSE = ROOT / "docker-compose.yml"
UNLIMITED = "1000000"
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
KILL_EVERY_SECONDS = 10.0
CHECKED_SECONDS = 3.0
"""Time after which the balancer, which checks every second, uses a returned replica."""
ENVIRONMENT = {
    "PADDLEPOOL_CODEC_PROCESSES": "1",
    # Three replicas on few cores answer late; latency is not measured here.
    "PADDLEPOOL_TIMEOUT_DEFAULT_MS": "30000",
}
USERS = 4
READY = re.compile(r'paddlepool_model_ready\{.*replica="(\w+)"')

Event = Callable[[int], str]
"""Cause the nth fault, wait until all replicas answer, and describe it."""


class Replica(contextlib.ExitStack):
    """One server on a fixed port; a successor can replace it."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()

    def start(self) -> None:
        """Return when it is ready. Raises RuntimeError if it does not become ready."""
        environment = {"PADDLEPOOL_DRAIN_DELAY_SECONDS": "3", **ENVIRONMENT}
        self.pid = self.enter_context(running_server(environment=environment, port=self.port)).pid

    def replace(self, *, drained: bool) -> float:
        """Drain or kill it, and start its successor. Returns the seconds until that one is
        ready."""
        if not drained:
            os.kill(self.pid, signal.SIGKILL)
        self.close()
        began = time.perf_counter()
        self.start()
        return time.perf_counter() - began


def balancer(
    ports: list[int],
    directory: Path,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AbstractContextManager[Server]:
    """Run HAProxy in front of these ports.

    `directory` gets its log, haproxy.log. With PADDLEPOOL_TLS_CERTIFICATE in the environment, it
    listens for TLS on the next port. Raises SystemExit without HAProxy.
    """
    if shutil.which("haproxy") is None:
        raise SystemExit("haproxy is not on the path: apt-get install haproxy")
    port = free_port()
    file = directory / "haproxy.cfg"
    file.write_text(local_configuration(ports, port=port, status_port=free_port()), "utf-8")
    service = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]["balancer"]
    own = {
        "GLIBC_TUNABLES": service["environment"]["GLIBC_TUNABLES"],
        "PADDLEPOOL_ADDRESS_REQUESTS": UNLIMITED,
        "PADDLEPOOL_ADDRESS_CONNECTIONS": UNLIMITED,
    }
    return running_program(
        ["haproxy", "-W", "-f", file],
        port,
        environment=own | dict(environment),
        log_file=directory / "haproxy.log",
        timeout=20.0,
    )


def local_configuration(ports: list[int], *, port: int, status_port: int) -> str:
    """Return the committed configuration with local addresses and without a resolver."""
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
    )
    text = CONFIGURATION.read_text("utf-8")
    for pattern, replacement in changes:
        text, times = re.subn(pattern, replacement, text)
        if times != 1:
            raise RuntimeError(f"{pattern!r} stands {times} times in {CONFIGURATION.name}")
    return text


@contextlib.contextmanager
def ray_up(*options: str, environment: Mapping[str, str]) -> Iterator[Server]:
    """Run Ray Serve within the block; yields it once the first replica answers.

    Raises RuntimeError, with the end of its output, if none answers.
    """
    port = free_port()
    command = [
        PYTHON,
        "-m",
        "paddlepool.cli",
        "ray",
        "up",
        "--host",
        HOST,
        "--port",
        port,
        *options,
    ]
    with (
        tempfile.TemporaryDirectory(prefix="ray") as directory,
        running_program(
            command,
            port,
            environment={
                "RAY_TMPDIR": directory,
                "PADDLEPOOL_PROVE_GROUPS": "off",
                "PADDLEPOOL_STATE_FILE": "off",
                **environment,
            },
            timeout=RAY_START_SECONDS,
        ) as server,
    ):
        yield server


def chaos(event: Event, seconds: float) -> Iterator[str]:
    """One event every ten seconds."""
    began = time.perf_counter()
    for number in itertools.count():
        due = began + number * KILL_EVERY_SECONDS
        time.sleep(max(0.0, due - time.perf_counter()))
        if time.perf_counter() - began >= seconds:
            return
        yield event(number)
        time.sleep(CHECKED_SECONDS)


def rolling(running: list[Replica]) -> Iterator[str]:
    """Drain and replace all, one after another."""
    for replica in running:
        yield f"drained, ready again after {replica.replace(drained=True):.1f} s"
        time.sleep(CHECKED_SECONDS)


@contextlib.contextmanager
def behind_proxy(count: int) -> Iterator[tuple[int, Event, list[Replica]]]:
    """The committed HAProxy configuration; every third event is a drain."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        running = [stack.enter_context(Replica()) for _ in range(count)]
        # One after another: starting together, they would compete for the cores.
        for replica in running:
            replica.start()
        ports = [replica.port for replica in running]
        proxy = stack.enter_context(balancer(ports, Path(directory), environment=ENVIRONMENT))

        def event(number: int) -> str:
            drained = number % 3 == 2
            took = running[number % count].replace(drained=drained)
            return f"{'drained' if drained else 'killed'}, ready again after {took:.1f} s"

        yield proxy.port, event, running


@contextlib.contextmanager
def under_ray(ingress: str, count: int) -> Iterator[tuple[int, Event, list[Replica]]]:
    """Ray Serve with this many replicas; each event kills the server below one actor."""
    number_of = str(count)
    options = ("--cpus", "0.5", "--min-replicas", number_of, "--max-replicas", number_of)
    environment = {**ENVIRONMENT, **INGRESSES[ingress]}
    with ray_up(*options, environment=environment) as server:
        port = server.port
        wait_for_replicas(port, count)

        def event(number: int) -> str:
            servers = [pid for pid in descendants(server.pid) if is_server(pid)]
            os.kill(servers[number % len(servers)], signal.SIGKILL)
            return f"server killed, {count} replicas again after {wait_for_replicas(port, count)}"

        yield port, event, []


def is_server(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"\0paddlepool.cli.serve\0" in command


def wait_for_replicas(port: int, count: int) -> str:
    """Wait until /metrics shows this many replicas with a model; return the seconds."""

    def all_ready() -> bool:
        with contextlib.suppress(OSError):
            text = send(port, request("GET", "/metrics")).body.decode()
            return len(set(READY.findall(text))) == count
        return False

    began = time.perf_counter()
    wait_until(all_ready, f"fewer than {count} replicas", timeout=RAY_START_SECONDS, every=0.5)
    return f"{time.perf_counter() - began:.1f} s"


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("where", nargs="?", choices=("proxy", "ray"), default="proxy")
    arguments.add_argument("--ingress", choices=INGRESSES, default="proxy", help="of Ray")
    arguments.add_argument("--replicas", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=60.0, help="of chaos")
    args = arguments.parse_args()
    requests = (
        Case("mask of 1 MP", mask_request(picture(), predictor="onednn")),
        Case("one text", text_request("今天天气真好", predictor="onednn")),
    )
    failed = False
    with (
        under_ray(args.ingress, args.replicas)
        if args.where == "ray"
        else behind_proxy(args.replicas)
    ) as (port, event, running):
        for name, part in (("chaos", chaos(event, args.seconds)), ("rolling", rolling(running))):
            if name == "rolling" and not running:
                continue
            traffic = Traffic(port, requests)
            with traffic.users(USERS, pause=0.05):
                lines = []
                for line in part:
                    lines.append(line)
                    print(f"  {line}", flush=True)
            tally = traffic.tally
            lost = Counter(failure.reason for failure in (*tally.lost, *tally.refused))
            why = f" ({', '.join(f'{n} × {w}' for w, n in lost.items())})" if lost else ""
            print(
                f"{name}: {tally.right} right, {len(tally.wrong)} wrong, {lost.total()} not "
                f"answered{why}: {tally.right / max(1, tally.sent['good']):.3%}"
            )
            # The balancer retries; under Ray, a killed process may lose a request of each user.
            allowed = len(lines) * USERS if args.where == "ray" else 0
            failed |= lost.total() > allowed or bool(tally.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

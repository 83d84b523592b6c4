"""A replica under Ray Serve on this machine: it answers, it is counted, it drains."""

import argparse
import contextlib
import http.client
import json
import re
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from harness import HOST, Server, descendants
from replicas import PYTHON, ray_up

from paddlepool.cli.ray import configure, run
from paddlepool.contracts.errors import ConfigError

PATIENCE = 120.0


def needs_ray(test: Callable[..., None]) -> Callable[..., None]:
    """Each starts Ray, or a process that imports it."""
    reason = "SKIPPED RAY SERVE TESTS: `make .venv-ray/.installed` makes what they need"
    return pytest.mark.nightly(pytest.mark.skipif(not PYTHON.exists(), reason=reason)(test))


INFER = json.dumps(
    {
        "inputs": [
            {"name": "image", "shape": [1, 3, 1, 2], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
        ]
    }
).encode()


@pytest.fixture(scope="module")
def up(tiny_model_repository: Path) -> Iterator[Server]:
    """`paddlepool ray up` with the model `tiny`."""
    environment = {
        "PADDLEPOOL_MODEL_REPOSITORY": str(tiny_model_repository),
        "PADDLEPOOL_PROVE_GROUPS": "off",
        "PADDLEPOOL_STATE_FILE": "off",
        "PADDLEPOOL_QUOTA_REQUESTS_PER_MINUTE": "600",
    }
    with ray_up("--cpus", "1", environment=environment) as running:
        yield running


@needs_ray
def test_a_replica_answers_and_its_metrics_have_its_name(up: Server) -> None:
    """Through Ray, as the bare server does; what would change one replica alone is not offered."""
    with httpx.Client(base_url=f"http://{HOST}:{up.port}", timeout=PATIENCE) as client:
        response = client.post("/v2/models/tiny/infer", content=INFER)
        assert (response.status_code, len(response.json()["outputs"])) == (200, 2)
        assert response.headers["ratelimit-limit"] == "600"
        assert len(response.headers.get_list("date")) == 1
        assert len(response.headers.get_list("x-request-id")) == 1
        wrong = client.post("/v2/models/tiny/infer", content=b"{")
        assert (wrong.status_code, "error" in wrong.json()) == (400, True)
        assert client.post("/v2/repository/index").status_code == 404
        metrics = client.get("/metrics")
    ready = re.findall(r'(?m)^paddlepool_model_ready\{.*replica="(\w+)".*\} 1.0$', metrics.text)
    assert len(ready) == 1


@contextlib.contextmanager
def infer_begun(port: int) -> Iterator[http.client.HTTPConnection]:
    """A request of which all but the last five bytes are sent."""
    made = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    with contextlib.closing(made) as connection:
        connection.putrequest("POST", "/v2/models/tiny/infer")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(INFER)))
        connection.endheaders(INFER[:-5])
        yield connection


@needs_ray
def test_what_is_more_than_fits_gets_503_and_when_to_ask_again(up: Server) -> None:
    """16 at the replica and 32 before it, as documented; they are answered all the same."""
    with contextlib.ExitStack() as stack:
        waiting: dict[socket.socket, http.client.HTTPConnection] = {}
        for _ in range(60):
            begun = stack.enter_context(infer_begun(up.port))
            waiting[begun.sock] = begun
            time.sleep(0.02)  # one after the other, so that it is clear who comes too late
        refused: list[http.client.HTTPConnection] = []
        until = time.monotonic() + PATIENCE
        while len(refused) < 12 and time.monotonic() < until:
            refused += [waiting.pop(waiter) for waiter in select.select([*waiting], [], [], 1)[0]]
        responses = [waiter.getresponse() for waiter in refused]
        assert [response.status for response in responses] == [503] * 12
        assert {response.getheader("retry-after") for response in responses} == {"1"}
        waiting_clients = list(waiting.values())
        for waiter in waiting_clients:
            waiter.send(INFER[-5:])
        assert [waiter.getresponse().status for waiter in waiting_clients] == [200] * 48


@needs_ray
def test_a_request_in_flight_is_answered_before_the_end(up: Server) -> None:
    """SIGTERM with half a body sent: the answer comes, then everything ends with code 0."""
    below = descendants(up.pid)
    assert len(below) > 5
    with infer_begun(up.port) as connection:
        time.sleep(1)  # the replica has it
        up.process.terminate()
        time.sleep(1)
        connection.send(INFER[-5:])
        assert connection.getresponse().status == 200
    assert up.process.wait(PATIENCE) == 0
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "")
    monkeypatch.setitem(sys.modules, "ray", None)
    parser = argparse.ArgumentParser()
    configure(parser)
    with pytest.raises(
        ConfigError, match=r"^ray is not installed: pip install 'paddlepool\[ray\]'"
    ):
        run(parser.parse_args(["up"]))

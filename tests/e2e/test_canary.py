"""New versions beside a server under load: a good one takes over, broken ones never answer."""

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.process import Server, asking, running, wait_until
from tests.e2e.test_live import IDLE_PATIENCE
from tests.model_files import group

pytestmark = [pytest.mark.e2e, pytest.mark.paddle, pytest.mark.slow]

KEY = {"X-Api-Key": "admin"}
MODEL = "/v2/repository/models/tiny"
CONFIG = (
    'default_group = "faulty"\n'
    + group("faulty", backend="faulty")
    + '[version_policy]\nkind = "canary"\nrequests = {requests}\nagreement = 0.7\n'
)
FAULTS = {
    "swapped": "agreement 0.000",
    "rounded": "agreement 0.000",
    "slow": "times the run time of the current version",
    "crashes": "1 failure: ",
    "nan": "1 failure: output 'scores' contains NaN",
}


def publish(repository: Path, version: int, fault: str = "") -> None:
    staging = repository / "tiny" / ".staging"
    shutil.copytree(repository / "tiny" / "1", staging)
    if fault:
        (staging / ".fault").write_text(fault, "utf-8")
    staging.rename(repository / "tiny" / str(version))


def start(repository: Path, log: str, requests: int) -> Any:
    (repository / "tiny" / "config.toml").write_text(CONFIG.format(requests=requests))
    directory = repository.parent / log
    directory.mkdir()
    settings = {
        "admin_key": "admin",
        "repository_poll_seconds": 0.2,
        "state_file": repository.parent / "choices.json",
    }
    return running(repository, directory, settings=settings, module="tests.e2e.altered_server")


class Load:
    """Requests of pictures of two sizes, with pauses; and what answered them."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[int, str | None]] = Counter()
        self._sent = 0

    def __call__(self, client: httpx.Client) -> None:
        self._sent += 1
        side = 32 if self._sent % 10 == 0 else 8
        image = np.linspace(0, 1, 3 * 8 * side).tolist()
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, 3, 8, side], "data": image}
        reply = client.post("/v2/models/tiny/infer", json={"inputs": [tensor]})
        version = reply.json().get("model_version")
        self.answers[reply.status_code, version] += 1
        time.sleep(0.05)


def status(server: Server) -> dict[str, Any]:
    with server.client() as client:
        return dict(client.get(f"{MODEL}/canary", headers=KEY).json())


def decided(server: Server, version: int) -> dict[str, Any]:
    def over() -> bool:
        seen = status(server)
        return seen["version"] == version and seen["state"] != "testing"

    wait_until(over, patience=IDLE_PATIENCE, every=0.2)
    return status(server)


def test_a_version_is_promoted_and_kept(repository: Path) -> None:
    load = Load()
    with start(repository, "1", 20) as server, asking(server, 1, load):
        publish(repository, 2)
        verdict = decided(server, 2)
        assert (verdict["state"], verdict["agreement"]) == ("promoted", 1)
        # On a busy machine the times of 20 requests may prove nothing; later looks double them.
        assert verdict["identical"] == verdict["compared"]
        assert verdict["compared"] in (20, 40, 80)
        wait_until(lambda: (200, "2") in load.answers)
    assert set(load.answers) == {(200, "1"), (200, "2")}
    with start(repository, "2", 20) as server, server.client() as client:
        assert client.get("/v2/models/tiny").json()["versions"] == ["2"]


@pytest.mark.nightly  # half a minute for each of six versions
def test_broken_versions_are_rejected_and_a_good_one_takes_over(repository: Path) -> None:
    load = Load()
    with start(repository, "1", 100) as server, asking(server, 2, load):
        for version, (fault, reason) in enumerate(FAULTS.items(), start=2):
            publish(repository, version, fault)
            verdict = decided(server, version)
            assert verdict["state"] == "rejected", fault
            assert reason in verdict["reason"], fault
            assert verdict["compared"] <= 100, fault
            assert set(load.answers) == {(200, "1")}, fault
        publish(repository, 9)
        assert decided(server, 9)["state"] == "promoted"
        wait_until(lambda: (200, "9") in load.answers)
    assert set(load.answers) == {(200, "1"), (200, "9")}


@pytest.mark.nightly  # tests/evidence/canary has the same without a server
def test_a_server_that_is_killed_goes_on(repository: Path) -> None:
    with start(repository, "1", 40) as server:
        with asking(server, 1, Load()):
            publish(repository, 2)
            wait_until(lambda: status(server).get("compared", 0) >= 5, patience=IDLE_PATIENCE)
        server.process.kill()
        server.process.wait()
    with start(repository, "2", 40) as server, asking(server, 1, Load()):
        assert status(server)["serving"] == 1
        assert decided(server, 2)["state"] == "promoted"

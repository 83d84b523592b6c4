"""Groups compared while a real server serves: pinned, proven and shadowed."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.process import PATIENCE, Server, running, wait_until
from tests.model_files import ON_DEMAND, group

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

PADDLE = "paddle_inference"
GROUPS = (
    group("onednn", 'base = "native"', backend=PADDLE)
    + group("native", ON_DEMAND, "options = { onednn = false }", backend=PADDLE)
    + group("twin", ON_DEMAND, backend=PADDLE)
    + group("gpu", ON_DEMAND, 'options = { device = "gpu" }', backend=PADDLE)
)
IDLE_PATIENCE = 5 * PATIENCE
"""What waits for idle moments: on a busy machine those are rare."""
SETTINGS = {"shadow_fraction": 1, "shadow_groups": "native,gpu", "prove_groups": "all"}


@pytest.fixture(scope="module")
def live(tiny_model_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves `tiny` with a default group, its base, a twin that changes nothing, and a GPU."""
    directory = tmp_path_factory.mktemp("live")
    shutil.copytree(tiny_model_repository, directory / "models")
    (directory / "models" / "tiny" / "config.toml").write_text(GROUPS)
    with running(directory / "models", directory, settings=SETTINGS) as server:
        yield server


def document(**parameters: Any) -> dict[str, Any]:
    image = np.linspace(0, 1, 3 * 8 * 8).tolist()
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": image}
    return {"inputs": [tensor], "parameters": parameters}


def infer(client: httpx.Client, **parameters: Any) -> httpx.Response:
    return client.post("/v2/models/tiny/infer", json=document(**parameters))


def predictors(client: httpx.Client) -> dict[str, dict[str, Any]]:
    [model] = client.get("/info").json()["models"]
    return {row["name"]: row for row in model["predictors"]}


def sample(client: httpx.Client, line: str) -> float:
    """The value of the one sample that begins so; 0 where there is none."""
    lines = [row for row in client.get("/metrics").text.splitlines() if row.startswith(line)]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def test_the_first_request_to_a_cold_group_starts_it_and_holds_nobody_up(live: Server) -> None:
    with live.client() as client, ThreadPoolExecutor(1) as other:
        infer(client)
        assert not predictors(client)["twin"]["started"]
        began = time.monotonic()
        cold = other.submit(infer, client, predictor="twin", timeout=150_000)
        assert infer(client).status_code == 200
        response = cold.result(PATIENCE)
        assert time.monotonic() - began < 8, "not as long as without a deadline of its own"
        assert response.status_code == 504
        assert "150 ms: instance group 'twin' has no predictor running" in response.json()["error"]
        assert predictors(client)["twin"]["started"]
        wait_until(lambda: bool(predictors(client)["twin"]["ready"]))
        warm = infer(client, predictor="twin")
        assert (warm.status_code, warm.headers["x-predictor"]) == (200, "twin")


@pytest.mark.nightly  # measures times in idle moments
def test_every_group_is_proven_or_says_why_not(live: Server) -> None:
    with live.client() as client:
        wait_until(
            lambda: all(row["proof"] != "not measured yet" for row in predictors(client).values()),
            patience=IDLE_PATIENCE,
        )
        state = predictors(client)
        assert state["onednn"]["effective"] is True, state["onednn"]
        assert "than native" in state["onednn"]["proof"]
        assert state["native"]["effective"] is True, state["native"]
        assert state["twin"]["effective"] is not True or "times the time" in state["twin"]["proof"]
        assert "the same bits as onednn" in state["twin"]["proof"]
        gauge = 'paddlepool_predictor_effective{instance_group="onednn",model="tiny"'
        assert sample(client, gauge) == 1


def test_answered_requests_are_replayed_on_the_other_groups(live: Server) -> None:
    """Times in the same histogram, drift in its own; what no machine here can run is left out."""
    labels = 'instance_group="native",model="tiny",predictor="native"'
    drift = f"paddlepool_predictor_output_drift_count{{{labels}}}"
    timed = f'paddlepool_predictor_infer_seconds_count{{batch_size="1",{labels}'
    with live.client() as client:
        before = sample(client, timed)

        def replayed() -> bool:
            """Runs that a request interrupts have drift and no time."""
            assert infer(client).status_code == 200
            return sample(client, drift) >= 3 and sample(client, timed) > before

        # A shorter pause would leave the server no idle moment.
        wait_until(replayed, patience=IDLE_PATIENCE, every=0.05)
        assert sample(client, drift.replace("_count", "_sum")) < 1e-3
        outcome = 'paddlepool_shadow_requests_total{model="tiny",outcome="replayed"}'
        assert sample(client, outcome) >= 1

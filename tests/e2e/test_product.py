"""The models of the repository behind a real socket, against hostile requests."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.probe import assert_live_within
from tests.e2e.process import ROOT, Server, asking
from tests.engine.process.kernel import available_measures
from tests.tasks.codecs.pictures import encoded, photo

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

BLNS = ROOT / ".." / "shared" / "data" / "blns.json"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def client(full_server: Server) -> Iterator[httpx.Client]:
    with full_server.client() as client:
        yield client


def test_info_tells_what_confines_the_processes_that_serve(
    full_server: Server, client: httpx.Client
) -> None:
    available = list(available_measures())
    confinement = client.get("/info").json()["confinement"]
    assert confinement == {"codecs": available, "predictors": available}
    states = [Path(f"/proc/{pid}/status").read_text("ascii") for pid in full_server.children()]
    assert len(states) > 2
    assert all("\nNoNewPrivs:\t1\n" in state for state in states)
    if "seccomp" in available:
        assert all("\nSeccomp:\t2\n" in state for state in states)


@pytest.mark.skipif(not BLNS.exists(), reason="the list of naughty strings is not beside us")
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_naughty_strings_get_200_or_422_and_no_echo(
    full_server: Server, client: httpx.Client, step: int
) -> None:
    """All 515 each night, a quarter of them otherwise."""
    strings = json.loads(BLNS.read_text("utf-8"))[::step]
    assert len(strings) * step > 500
    completed = 0
    for string in strings:
        response = client.post("/sentiment", content=json.dumps({"text": string}), headers=JSON)
        assert response.status_code in (200, 422), repr(string)
        if response.status_code == 200:
            completed += 1
            assert math.isclose(sum(item["score"] for item in response.json()), 1, abs_tol=1e-5)
        if len(string) > 12:
            assert string not in response.text
    assert completed * step > 430
    client.get("/v2", headers={"X-Request-ID": "after-naughty-strings"})
    full_server.wait_logged(request_id="after-naughty-strings")  # so all before it are there
    log = full_server.text()
    assert not [string for string in strings if len(string) > 12 and string in log]


@pytest.mark.parametrize("group", ["onednn", "onnxruntime_int8"])
def test_scores_do_not_depend_on_the_texts_of_other_clients(
    full_server: Server, client: httpx.Client, group: str
) -> None:
    """24 texts, one by one, then beside six clients whose texts share their batches."""
    lines = (ROOT / "training" / "emotion" / "everyday.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]

    def scores(client: httpx.Client, *texts: str) -> list[dict[str, float]]:
        path = f"/sentiment?predictor={group}&timeout_ms=30000"
        reply = client.post(path, json={"inputs": list(texts)}).raise_for_status().json()
        return [{score["label"]: score["score"] for score in text} for text in reply]

    alone = [scores(client, text)[0] for text in texts[:24]]
    with asking(full_server, 6, lambda other: scores(other, *texts[24:32])):
        beside = [scores(client, text)[0] for text in texts[:24]]
    assert beside == [pytest.approx(score, abs=1e-4) for score in alone]


@pytest.mark.nightly  # measures times
def test_liveness_answers_while_predictors_use_every_core(full_server: Server) -> None:
    """p99 within 50 ms under more pictures and texts than the machine can take."""
    picture = encoded(photo(640, 480), "PNG")
    replies: list[httpx.Response] = []

    def cut(client: httpx.Client) -> None:
        headers = {"Content-Type": "image/png"}
        path = "/segment?timeout_ms=30000"
        replies.append(client.post(path, content=picture, headers=headers))

    def classify(client: httpx.Client) -> None:
        path = "/sentiment?timeout_ms=30000"
        replies.append(client.post(path, json={"text": "今天很开心" * 20}))

    with asking(full_server, 4, cut), asking(full_server, 4, classify):
        assert_live_within(full_server, seconds=0.050)
    assert replies
    assert {reply.status_code for reply in replies} <= {200, 503}

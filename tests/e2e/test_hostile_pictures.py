"""The corpus of hostile pictures posted to the real server, with good traffic beside it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.process import ROOT, Server
from tests.tasks.codecs import pictures

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

CORPUS = ROOT / ".." / "shared" / "data" / "hostile_images"
ACCEPTED = {"decode": {200}, "reject": {415, 422}, "either": {200, 415, 422}}


def post(client: httpx.Client, body: bytes) -> httpx.Response:
    headers = {"content-type": "image/jpeg"}  # whatever it is: only the bytes count
    return client.post("/segment?output=mask&timeout_ms=30000", content=body, headers=headers)


@pytest.mark.parametrize("step", [24, pytest.param(1, marks=pytest.mark.nightly)])
def test_hostile_pictures_get_their_expected_status(full_server: Server, step: int) -> None:
    """Every 24th of 314 files, all of them each night; good pictures are answered meanwhile."""
    if not CORPUS.is_dir():
        pytest.skip(f"NOT TESTED: the corpus {CORPUS.name} is not beside the project")
    manifest = json.loads((CORPUS / "MANIFEST.json").read_text("utf-8"))
    before = full_server.children()
    good = pictures.encoded(pictures.photo(), "JPEG")
    done = threading.Event()
    neighbours: list[int] = []

    def keep_asking() -> None:
        with full_server.client() as client:
            while not done.is_set():
                neighbours.append(post(client, good).status_code)

    def outcome(name: str) -> tuple[str, int, str]:
        response = post(client, (CORPUS / name).read_bytes())
        code = "" if response.is_success else response.json()["code"]
        return name, response.status_code, code

    neighbour = threading.Thread(target=keep_asking)
    neighbour.start()
    try:
        with full_server.client() as client, ThreadPoolExecutor(3) as clients:
            outcomes = list(clients.map(outcome, list(manifest)[::step]))
    finally:
        done.set()
        neighbour.join()
    wrong = {
        name: (status, code)
        for name, status, code in outcomes
        if status not in ACCEPTED[manifest[name]["expect"]]
    }
    assert wrong == {}
    assert len(outcomes) == len(range(0, 314, step))
    assert len(neighbours) * step > 10
    assert set(neighbours) == {200}
    assert before <= full_server.children()  # in an idle moment it may open one for a proof

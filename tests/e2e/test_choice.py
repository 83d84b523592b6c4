"""The default group is measured, swapped in under load, and there at once after the next start."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddlepool.contracts.status import Choice
from paddlepool.evidence.live.stored_choices import StoredChoices
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.observability.build_info import machine
from tests.e2e.process import Server, asking, running, wait_until
from tests.e2e.test_live import IDLE_PATIENCE, infer
from tests.model_files import ON_DEMAND, group

pytestmark = [pytest.mark.e2e, pytest.mark.paddle, pytest.mark.slow]

CONFIG = (
    'default_group = "auto"\n'
    + group("first", "options = { pause = 0.06 }", backend="paced")
    + group("slow", ON_DEMAND, "options = { pause = 0.12 }", backend="paced")
    + group("fast", ON_DEMAND, "options = { pause = 0.01 }", backend="paced")
    + group("gpu", ON_DEMAND, 'options = { device = "gpu" }', backend="paddle_inference")
)


@pytest.fixture
def repository(repository: Path) -> Path:
    (repository / "tiny" / "config.toml").write_text(CONFIG)
    return repository


def start(repository: Path, log: str, **settings: object) -> Any:
    directory = repository.parent / log
    directory.mkdir()
    stored = {"state_file": repository.parent / "choices.json", "prove_groups": "started"}
    settings = stored | settings
    return running(repository, directory, settings=settings, module="tests.e2e.altered_server")


def choice(server: Server) -> dict[str, Any]:
    with server.client() as client:
        [model] = client.get("/info").json()["models"]
    return dict(model["choice"])


def chosen_by(server: Server) -> str:
    return str(choice(server)["by"])


def test_a_kept_choice_answers_from_the_start(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = StoredChoices(repository.parent / "choices.json", precision="auto", machine=machine())
    choice = Choice(group="fast", by="measured", reason="twice the throughput of first")
    choices.store(ModelRepository(repository).read("tiny", 1), choice)
    with start(repository, "1", prove_groups="off") as server, server.client() as client:
        assert infer(client).headers["x-predictor"] == "fast"
        assert chosen_by(server) == "kept"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # instructions masked
    with start(repository, "2", prove_groups="off") as server, server.client() as client:
        assert infer(client).headers["x-predictor"] == "first"
        assert "it was chosen with another environment" in server.text()


@pytest.mark.nightly  # measures, with users beside it
def test_choosing_and_swapping(repository: Path) -> None:
    replies: list[httpx.Response] = []

    def ask(user: httpx.Client) -> None:
        time.sleep(0.4)
        replies.append(infer(user))

    with start(repository, "1") as server:
        assert chosen_by(server) == "start"
        with asking(server, 2, ask):
            wait_until(lambda: chosen_by(server) == "measured", patience=IDLE_PATIENCE)
            seen = len(replies)
            wait_until(lambda: len(replies) > seen + 10)
        assert {reply.status_code for reply in replies} == {200}
        assert {reply.headers["x-predictor"] for reply in replies} == {"first", "fast"}
        chosen = choice(server)
        assert chosen["group"] == "fast"
        reasons = {candidate["group"]: candidate["reason"] for candidate in chosen["candidates"]}
        assert "times the throughput of first" in reasons["fast"]
        # Half as fast, so a few runs may or may not be enough to drop it; and on a busy machine the
        # users' requests may not leave it all its runs.
        words = ("times as long as first", "times the throughput of first", "requests left time")
        assert any(candidate in reasons["slow"] for candidate in words), reasons
        assert "no CUDA" in reasons["gpu"]
        assert "tiny@1: fast answers by default" in server.text()
        with server.client() as client:
            metrics = client.get("/metrics").text
            assert infer(client, predictor="first").headers["x-predictor"] == "first"
        series = (
            'chosen_by="measured",instance_group="fast",model="tiny",predictor="fast",version="1"'
        )
        assert f"paddlepool_default_group_info{{{series}}} 1.0" in metrics
        assert server.stop() == 0
    [stored] = json.loads((repository.parent / "choices.json").read_text())["choices"]
    assert (stored["model"], stored["group"]) == ("tiny", "fast")


@pytest.mark.nightly
def test_the_end_in_the_middle_of_choosing(repository: Path) -> None:
    with start(repository, "1") as server:
        children = server.children()
        wait_until(lambda: bool(server.children() - children), patience=IDLE_PATIENCE)
        beside = server.children()
        assert server.stop() == 0
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in beside))
    assert not (repository.parent / "choices.json").exists()

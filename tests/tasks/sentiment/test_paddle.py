"""/sentiment over a real predictor process: a tiny random BERT and the whole application."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.contracts.ports import Pipeline, ServedModelInfo
from app.engine.backends.process import ProcessBackend
from app.engine.pool.context import EngineContext
from app.engine.registry.registry import ModelRegistry
from app.main import create_app
from app.models.repository.layout import ModelRepository
from app.tasks import PIPELINES
from app.tasks.task import Workers, build_pipeline, load_tasks, settings_class
from tests.engine.fakes import PATIENCE

pytestmark = pytest.mark.paddle

ROOT = Path(__file__).parents[3]
TEXTS = [
    "我好开心",
    "今天气死了。",
    "我怕",
    "你不开心，我难过！" * 2,
    "今天他气死我了，我好难过，你怕不怕？" * 2,
    "hello",
    "我" * 14,
    "我" * 15,
    "他好开心。" * 6,
    "他好开心。" * 40,
    "？！",
    "a b c d e f g",
]


class Batches:
    """Remembers how many rows each predictor run had."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def batch_done(
        self, *, model: str, version: int, group: str, rows: int, seconds: float
    ) -> None:
        self.rows.append(rows)

    def restarted(self, *, model: str, group: str, reason: str) -> None:
        raise AssertionError(f"a predictor was replaced: {reason}")

    def rejected(self, *, model: str, reason: str) -> None:
        raise AssertionError(f"a job was rejected: {reason}")


@pytest.fixture(scope="module")
def batches() -> Batches:
    return Batches()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, batches: Batches) -> Iterator[TestClient]:
    """The application over one exported model `emotion`."""
    root = tmp_path_factory.mktemp("sentiment_repository")
    weights = ROOT / "tests" / "models" / "networks" / "fixtures" / "tiny_bert"
    export = ["export", "bert", "--weights", str(weights), "--repository", str(root)]
    subprocess.run(
        [sys.executable, "-m", "app.cli", *export, "--name", "emotion", "--origin", "random"],
        check=True,
        cwd=ROOT,
        capture_output=True,
    )
    repository, tasks = ModelRepository(root), load_tasks(PIPELINES)
    settings = settings_class(tasks.values())(model_repository=root, timeout_default_ms=30_000)
    with ThreadPoolExecutor(2) as pool:
        workers = Workers(codec=None, text=pool)  # type: ignore[arg-type]

        async def build(info: ServedModelInfo) -> Pipeline | None:
            return build_pipeline(info, tasks=tasks, workers=workers)

        registry = ModelRegistry(
            repository,
            context=EngineContext(open_predictor=ProcessBackend(), observer=batches),
            build_pipeline=build,
            drain_timeout=60.0,
        )
        app = create_app(settings, registry=registry)
        with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
            until = time.monotonic() + PATIENCE
            while client.get("/v2/health/ready").status_code != 200:
                assert time.monotonic() < until, registry.index()
                time.sleep(0.05)
            yield client


def scores(client: TestClient, texts: Sequence[str], **parameters: Any) -> list[dict[str, float]]:
    reply = client.post("/sentiment", json={"inputs": list(texts), "parameters": parameters})
    assert reply.status_code == 200, reply.text
    return [{row["label"]: row["score"] for row in rows} for rows in reply.json()]


@pytest.mark.parametrize("predictor", ["onednn", "native"])
def test_a_text_scores_the_same_alone_and_in_every_batch(
    client: TestClient, batches: Batches, predictor: str
) -> None:
    """T6: 12 random compositions of up to 32 texts, none further than 1e-4 from the text alone."""
    alone = {text: scores(client, [text], predictor=predictor)[0] for text in TEXTS}
    batches.rows.clear()
    draw = random.Random(5)
    for _ in range(12):
        company = draw.choices(TEXTS, k=draw.randint(2, 32))
        together = scores(client, company, predictor=predictor)
        for text, found in zip(company, together, strict=True):
            assert found.keys() == alone[text].keys()
            assert all(abs(found[label] - alone[text][label]) <= 1e-4 for label in found)
    assert max(batches.rows) > 1, "nothing was batched, so nothing was tested"


def test_the_longest_request_is_answered(client: TestClient) -> None:
    """32 texts of 2,000 characters, the limits of T1: truncated, told so, within the deadline."""
    reply = client.post(
        "/sentiment",
        json={"inputs": ["我好开心" * 500] * 32, "parameters": {"truncated": True, "tokens": True}},
    )
    assert reply.status_code == 200, reply.text
    assert [row["truncated"] for row in reply.json()] == [True] * 32
    assert {row["tokens"] for row in reply.json()} == {64}
    assert reply.headers["x-truncated"] == "true"
    assert reply.headers["x-model"] == "emotion@1"

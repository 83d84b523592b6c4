"""/sentiment over a real predictor process: a tiny random BERT and the whole application."""

import random
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from paddlepool.main import create_app
from paddlepool.tasks.task import load_tasks, settings_class
from tests.engine.fakes import wait_until
from tests.ran import ROOT, ran

pytestmark = pytest.mark.paddle

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


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The application over one exported model `emotion`."""
    root = tmp_path_factory.mktemp("sentiment_repository")
    weights = ROOT / "tests" / "models" / "networks" / "fixtures" / "tiny_bert"
    export = ["export", "bert", "--weights", str(weights), "--repository", str(root)]
    ran(
        [sys.executable, "-m", "paddlepool.cli", *export, "--name", "emotion", "--origin", "random"]
    )
    settings = settings_class(load_tasks().values())(
        model_repository=root, timeout_default_ms=30_000, codec_processes=1, prove_groups="off"
    )
    with TestClient(create_app(settings), "http://localhost") as client:
        wait_until(lambda: client.get("/v2/health/ready").status_code == 200)
        yield client


def rows_and_runs(client: TestClient, predictor: str) -> list[float]:
    """How many rows all runs of the predictor had, and how many runs there were."""
    metrics = client.get("/metrics").text
    labels = f'{{instance_group="{predictor}",model="emotion",predictor="{predictor}"}}'
    return [
        float(re.findall(rf"paddlepool_batch_rows_{name}{re.escape(labels)} (\S+)", metrics)[0])
        for name in ("sum", "count")
    ]


def scores(client: TestClient, texts: Sequence[str], **parameters: Any) -> list[dict[str, float]]:
    reply = client.post("/sentiment", json={"inputs": list(texts), "parameters": parameters})
    assert reply.status_code == 200, reply.text
    return [{row["label"]: row["score"] for row in rows} for rows in reply.json()]


@pytest.mark.parametrize("predictor", ["onednn", "native"])
def test_a_text_scores_the_same_alone_and_in_every_batch(
    client: TestClient, predictor: str
) -> None:
    """T6: 12 random compositions of up to 32 texts, none further than 1e-4 from the text alone."""
    alone = {text: scores(client, [text], predictor=predictor)[0] for text in TEXTS}
    draw = random.Random(5)
    for _ in range(12):
        company = draw.choices(TEXTS, k=draw.randint(2, 32))
        together = scores(client, company, predictor=predictor)
        for text, found in zip(company, together, strict=True):
            assert found.keys() == alone[text].keys()
            assert all(abs(found[label] - alone[text][label]) <= 1e-4 for label in found)
    rows, runs = rows_and_runs(client, predictor)
    assert rows > runs, "nothing was batched, so nothing was tested"


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

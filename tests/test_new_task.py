"""A task of another package is served as the server's own; a second model is one directory.

The tasks are those of examples/, over Paddle programs in predictor processes of their own:
everything here is what the product runs.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from paddlepool.engine.registry.load_history import NOT_LOADED
from paddlepool.main import create_app
from paddlepool.settings.server import unknown_variables
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import load_tasks, settings_class
from tests.ran import ROOT, ran, wait_until

pytestmark = pytest.mark.paddle

EXAMPLES = ROOT / "examples"
CLASSIFIER = "picture-classifier/src/picture_classifier"
TAGGER = {"tagger": "text_tagger.task"}
ENVIRONMENT = {
    "PADDLEPOOL_TAGGER_MAX_BYTES": "1000",
    "PADDLEPOOL_TAGGER_MAX_TAGS": "2",
    "PADDLEPOOL_CODEC_PROCESSES": "1",
    "PADDLEPOOL_PROVE_GROUPS": "off",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of the new task."""
    root = tmp_path_factory.mktemp("tagger_repository")
    ran([sys.executable, "-m", "tests.tasks.tagger_models", str(root)])
    return root


@contextmanager
def serve(repository: Path, modules: Mapping[str, str]) -> Iterator[TestClient]:
    """The product over these models and tasks, once every model is ready or cannot be."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        kind = settings_class(load_tasks(modules).values())
        settings = kind(model_repository=repository)
    app = create_app(settings, tasks=load_tasks(modules))
    with TestClient(app, base_url="http://localhost") as client:

        def loaded() -> bool:
            models = client.get("/info").json()["models"]
            return models and not any(
                model["state"] == "LOADING" or model["reason"] == NOT_LOADED for model in models
            )

        wait_until(loaded)
        yield client


@pytest.fixture(scope="module")
def client(repository: Path) -> Iterator[TestClient]:
    with serve(repository, {**PIPELINES, **TAGGER}) as client:
        yield client


def tag(client: TestClient, text: str, query: str = "", **headers: str) -> Any:
    return client.post(f"/tag{query}", json={"text": text}, headers=headers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今天收到了录取通知书", ["han"]),
        ("ひらがな", ["kana"]),
        ("안녕하세요", ["hangul"]),
        ("Привет, мир!", ["cyrillic"]),
        ("Hello 世界世界", ["latin", "han"]),
    ],
)
def test_the_new_task_answers(client: TestClient, text: str, expected: list[str]) -> None:
    """Endpoint, batching, the common headers and the stages come with the declaration."""
    reply = tag(client, text)
    assert reply.status_code == 200, reply.text
    assert [row["tag"] for row in reply.json()] == expected
    assert reply.headers["X-Tags"] == str(len(expected))
    assert (reply.headers["X-Model"], reply.headers["X-Predictor"]) == ("scripts@1", "native")
    assert {"preprocess;", "infer;", "postprocess;"} <= {
        stage.strip().partition("dur")[0] for stage in reply.headers["Server-Timing"].split(",")
    }


def test_its_settings_are_read_and_shown(client: TestClient) -> None:
    text = "漢字 かな кирил latin"
    assert len(tag(client, text).json()) == 2
    limits = client.get("/info").json()["limits"]
    assert (limits["tagger_max_bytes"], limits["tagger_max_tags"]) == (1_000, 2)
    kind = settings_class(load_tasks({**PIPELINES, **TAGGER}).values())
    assert unknown_variables([*ENVIRONMENT, "PADDLEPOOL_TAGGER_TAGS"], kind) == (
        "PADDLEPOOL_TAGGER_TAGS",
    )
    assert unknown_variables(["PADDLEPOOL_TAGGER_MAX_TAGS"], settings_class(())) != ()


def test_it_is_in_the_documentation_and_the_metrics(client: TestClient) -> None:
    """OpenAPI with every error it can give; its route and its models as labels."""
    operation = client.get("/openapi.json").json()["paths"]["/tag"]["post"]
    assert operation["operationId"] == "tagText"
    assert {"413", "422", "503", "504"} <= operation["responses"].keys()
    tag(client, "x")
    shown = client.get("/metrics").text
    done = 'paddlepool_request_duration_seconds_count{method="POST",route="/tag",status="200"} '
    [count] = [line.removeprefix(done) for line in shown.splitlines() if line.startswith(done)]
    assert float(count) > 0
    for labels in (
        'stage_duration_seconds_count{instance_group="native",model="scripts",predictor="native"',
        'model_ready{model="scripts_zh",version="1"}',
    ):
        assert f"paddlepool_{labels}" in shown


def test_a_second_model_of_a_task_is_one_directory(client: TestClient) -> None:
    for query, expected in (("", "han"), ("?model=scripts", "han"), ("?model=scripts_zh", "汉字")):
        [row] = tag(client, "汉字", query).json()
        assert row["tag"] == expected


def test_without_its_package_a_task_does_not_exist(repository: Path) -> None:
    with serve(repository, PIPELINES) as client:
        assert tag(client, "x").status_code == 404
        assert client.get("/v2/health/live").status_code == 200
        assert client.get("/v2/health/ready").status_code == 503
        info = client.get("/info").json()
        assert f"'tagger', there are {', '.join(PIPELINES)}" in info["models"][0]["reason"]
        assert "tagger_max_tags" not in info["limits"]


@pytest.mark.parametrize(
    ("file", "begins", "ends"),
    [
        ("picture-classifier/src/picture_classifier/picture.py", "def network_input", ""),
        (
            "picture-classifier/src/picture_classifier/task.py",
            "class Parameters",
            "def build_router",
        ),
        ("picture-classifier/src/picture_classifier/task.py", "def build_router", ""),
        ("text-tagger/src/text_tagger/task.py", "    async def run", "    def close"),
    ],
)
@pytest.mark.parametrize("page", ["new-task.md", "new-task.zh.md"])
def test_the_documentation_shows_the_examples_as_they_are(
    page: str, file: str, begins: str, ends: str
) -> None:
    code = (EXAMPLES / file).read_text("utf-8")
    part = code[code.index(begins) : code.index(ends) if ends else None].rstrip()
    assert f"{part}\n```" in (ROOT / "docs" / page).read_text("utf-8")

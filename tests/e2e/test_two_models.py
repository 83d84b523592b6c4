"""A composed model as its author has it: the example is exported, sealed, described and served."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import Server, running
from tests.ran import ROOT, ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle, pytest.mark.slow]

EXAMPLE = ROOT / "examples" / "two-models"
TASKS = "two-models=two_models.task"
SUBJECT = [{"box": [0.25, 0.3125, 0.75, 0.6875], "label": "blue"}]


def paddlepool(*arguments: object, check: bool = True) -> Any:
    return ran([sys.executable, "-W", "ignore", "-m", "paddlepool.cli", *arguments], check=check)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example's models, sealed as its README says."""
    root = tmp_path_factory.mktemp("two-models")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(EXAMPLE / "src"), prepend=os.pathsep)
        environment.setenv("PADDLEPOOL_TASKS", TASKS)
        ran([sys.executable, "-W", "ignore", EXAMPLE / "export_models.py", root])
        for name in ("subject", "colour"):
            paddlepool("models", "seal", root / name / "1")
        sealed = paddlepool("models", "seal", root / "two-models" / "1", "--licence", "CC0-1.0")
        assert f"answer of the sample request: {json.dumps(SUBJECT)}" in sealed.stdout
        yield root


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    with running(models, directory, settings={"tasks": TASKS}) as server:
        yield server


def test_sealing_stores_the_sample_and_its_answer(models: Path) -> None:
    version = models / "two-models" / "1"
    manifest = json.loads((version / "manifest.json").read_text("utf-8"))
    assert (manifest["format"], manifest["sample"]) == (3, "sample.png")
    assert set(manifest["files"]) == {"sample.png", "answer.json"}
    assert manifest["weights"]["licence"] == "CC0-1.0"
    assert json.loads((version / "answer.json").read_text("utf-8")) == SUBJECT
    again = paddlepool("models", "seal", version, check=False)
    assert "two-models/1 is sealed already" in again.stderr


def test_describe_shows_the_sample_the_answer_and_the_parts(models: Path) -> None:
    described = paddlepool("models", "describe", "two-models", "--repository", models)
    lines = [line.split(maxsplit=1) for line in described.stdout.splitlines() if line]
    facts = {words[0]: words[1] for words in lines}
    assert facts["sample:"] == "sample.png"
    assert json.loads(facts["answer:"]) == SUBJECT
    assert facts["labels:"] == "['red', 'green', 'blue']"
    assert (facts["find"], facts["classify"]) == ("subject", "colour")
    assert len(facts["sha256:"]) == 64


def test_a_part_that_is_missing_is_named(models: Path, tmp_path: Path) -> None:
    version = tmp_path / "outer" / "1"
    version.mkdir(parents=True)
    (version / "sample.png").write_bytes(b"a picture")
    parts = '[parts]\nfind = "absent"\nclassify = "colour"\n'
    (version.parent / "config.toml").write_text(f'pipeline = "two-models"\n{parts}', "utf-8")
    done = paddlepool("models", "seal", version, check=False)
    assert done.returncode == 1
    assert "its part find, model absent, is not in the repository" in done.stderr


def test_a_part_that_is_composed_is_refused(models: Path, tmp_path: Path) -> None:
    version = tmp_path / "outer" / "1"
    version.mkdir(parents=True)
    (version / "sample.png").write_bytes(b"a picture")
    shutil.copytree(models / "two-models", tmp_path / "two-models")
    parts = '[parts]\nfind = "two-models"\nclassify = "colour"\n'
    (version.parent / "config.toml").write_text(f'pipeline = "two-models"\n{parts}', "utf-8")
    done = paddlepool("models", "seal", version, check=False)
    assert done.returncode == 1
    assert "its part find, model two-models, is composed itself" in done.stderr


ANSWERS = {
    "tuples": "[tuple(subject.model_dump()) for subject in value]",
    "objects": "value",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_json_changes_is_refused(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    package = shutil.copytree(EXAMPLE / "src" / "two_models", tmp_path / "src" / "two_models")
    code = (package / "task.py").read_text("utf-8")
    body = '[subject.model_dump(mode="json") for subject in value]'
    assert code.count(body) == 1
    (package / "task.py").write_text(code.replace(body, ANSWERS[kind]), "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"), prepend=os.pathsep)
    repository = shutil.copytree(models, tmp_path / "models")
    version = repository / "two-models" / "1"
    (version / "manifest.json").unlink()
    (version / "answer.json").unlink()
    done = paddlepool("models", "seal", version, check=False)
    assert done.returncode == 1
    assert "must return what JSON gives back" in done.stderr
    assert [path.name for path in version.iterdir()] == ["sample.png"]


def test_the_sample_is_answered_by_both_models(models: Path, server: Server) -> None:
    picture = (models / "two-models" / "1" / "sample.png").read_bytes()
    groups = "?instance_group=find:onednn,classify:onednn"
    with server.client() as http:
        photo = (ROOT / "docs" / "images" / "astronaut.jpg").read_bytes()
        assert http.post("/two-models", files={"file": photo}).status_code == 200
        reply = http.post(f"/two-models{groups}", files={"file": picture})
        assert reply.status_code == 200, reply.text
        assert reply.json() == SUBJECT
        assert {"find-infer", "classify-infer", "postprocess"} <= {
            stage.partition(";")[0] for stage in reply.headers["Server-Timing"].split(", ")
        }


def test_a_comparison_names_the_parts(server: Server) -> None:
    with server.client() as http:
        models = {model["name"]: model for model in http.get("/compare/data").json()["models"]}
    assert models["two-models"]["parts"] == {"find": "subject@1", "classify": "colour@1"}
    assert models["two-models"]["groups"] == []
    assert models["subject"]["parts"] is None


def test_the_log_says_which_parts_answer(server: Server) -> None:
    line = server.wait_logged(event="two-models@1 answers")
    assert (line["at"], line["parts"]) == ("/two-models", "find=subject@1, classify=colour@1")
    assert server.wait_logged(event="colour@1 answers")["predictor"] == "onednn"


@pytest.mark.parametrize("page", ["two-models.md", "two-models.zh.md"])
def test_the_documentation_shows_the_example_as_it_is(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    code = (EXAMPLE / "src" / "two_models" / "task.py").read_text("utf-8")
    for begins, ends in (("class TwoModelsPipeline", "def build_router"), ("TASK = ", None)):
        part = code[code.index(begins) : code.index(ends) if ends else None].rstrip()
        assert f"{part}\n```" in text

"""`paddlepool new-task`: what it writes is installed, passes its tests and is served as it is."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paddlepool.cli import main
from paddlepool.cli.new_task import EXAMPLE, renamed
from tests.e2e.process import running
from tests.ran import ROOT, ran

NAME = "plant-names-2"


def new_task(*arguments: str) -> int:
    return main(["new-task", *arguments])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Plants", "received 'Plants'"),
        ("plant_names", "NAME must be"),
        ("plants-", "NAME must be"),
        ("../plants", "NAME must be"),
        ("p" * 41, "at most 40 characters"),
        ("segment", "segment is a task of the server"),
        ("async", "async is a name of Python"),
        ("json", "json is a name of Python"),
        ("numpy", "a module numpy is installed"),
        ("text-tagger", "a module text_tagger is installed"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        assert new_task(name) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target, entry in (("full", "full/own.txt"), ("file", "file")):
        (tmp_path / entry).parent.mkdir(exist_ok=True)
        (tmp_path / entry).write_text("own")
        assert new_task(NAME, "--directory", str(tmp_path / target)) == 1
        assert f"{tmp_path / target} exists and is no empty directory" in capsys.readouterr().err
        assert (tmp_path / entry).read_text() == "own"
    (tmp_path / "empty").mkdir()
    assert new_task(NAME, "--directory", str(tmp_path / "empty")) == 0
    assert (tmp_path / "empty" / "pyproject.toml").exists()


def test_the_name_stands_for_the_examples_everywhere(tmp_path: Path) -> None:
    assert new_task(NAME, "--directory", str(tmp_path / NAME)) == 0
    example = ROOT / "examples" / EXAMPLE
    tracked = ran(["git", "ls-files"], cwd=example).stdout.splitlines()
    written = {
        str(file.relative_to(tmp_path / NAME)): file.read_text("utf-8")
        for file in (tmp_path / NAME).rglob("*")
        if file.is_file()
    }
    assert written == {
        renamed(name, NAME): renamed((example / name).read_text("utf-8"), NAME) for name in tracked
    }
    text = "\n".join([*written, *written.values()])
    for form in ("plant-names-2", "plant_names_2", "PlantNames2"):
        assert form in text
    assert "picture-classifier" not in text
    assert "picture_classifier" not in text.lower()
    assert "PictureClassifier" not in text


@pytest.mark.e2e
@pytest.mark.paddle
@pytest.mark.slow
def test_it_is_installed_tested_and_served_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user does: install, test, export, seal, verify, compare, serve, send a picture."""
    package, site, models = tmp_path / NAME, tmp_path / "site", tmp_path / "models"
    assert new_task(NAME, "--directory", str(package)) == 0
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    ran([*pip, "--no-build-isolation", "--no-compile", "--target", site, package])
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    done = ran([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=package)
    assert "5 passed" in done.stdout
    paddlepool = [sys.executable, "-W", "ignore", "-m", "paddlepool.cli"]
    ran([sys.executable, "-W", "ignore", package / "export_colours.py", models], cwd=tmp_path)
    ran([*paddlepool, "models", "seal", models / "colours" / "1"])
    compared = ran([*paddlepool, "compare", "colours", "--requests", 1, "--repository", models])
    assert "colours@1" in compared.stdout
    picture = tmp_path / "red.png"
    Image.fromarray(np.full((30, 20, 3), (250, 0, 40), np.uint8)).save(picture)
    with running(models, tmp_path) as server, server.client() as http:
        assert http.get("/info").json()["tasks"][NAME] == f"{NAME} 0.1.0"
        reply = http.post(f"/{NAME}", files={"file": picture.read_bytes()})
        assert reply.status_code == 200, reply.text
        assert [row["label"] for row in reply.json()] == ["red", "blue", "green"]
        assert {"decode", "preprocess", "infer"} <= {
            stage.partition(";")[0] for stage in reply.headers["Server-Timing"].split(", ")
        }
        assert http.post(f"/{NAME}", content=b"no picture").status_code == 415
        server.wait_logged(event=f"{NAME} is a task", of=f"{NAME} 0.1.0")

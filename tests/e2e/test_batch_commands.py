"""`paddlepool segment` and `paddlepool sentiment` against a real server."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from tests.codecs import pictures
from tests.e2e.process import ROOT, Server

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]


def command(
    *arguments: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_directory_is_cut_out_and_a_second_run_does_only_the_rest(
    full_server: Server, tmp_path: Path
) -> None:
    """Sub-directories are kept, a broken picture is named and does not stop the others."""
    source, results = tmp_path / "in", tmp_path / "out"
    (source / "sub").mkdir(parents=True)
    photo = pictures.encoded(pictures.photo(), "JPEG")
    for name in ("a.jpg", "sub/b.jpg"):
        (source / name).write_bytes(photo)
    (source / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot a picture")
    arguments = ("segment", source, "-o", results, "--jobs", 2, "--url", full_server.url)
    first = command(*arguments)
    assert first.returncode == 1, first.stderr
    assert "broken.png: 422 image_unreadable" in first.stderr
    assert first.stdout.strip() == f"2 of 3 pictures in {results}"
    cutout = results / "a.jpg.png"
    with Image.open(cutout) as picture:
        assert picture.mode == "RGBA"
    assert sorted(p.name for p in results.rglob("*.*.png")) == ["a.jpg.png", "b.jpg.png"]
    written = cutout.stat().st_mtime_ns
    (source / "broken.png").write_bytes(pictures.encoded(pictures.photo(), "PNG"))
    second = command(*arguments)
    assert second.returncode == 0, second.stderr
    assert cutout.stat().st_mtime_ns == written
    assert (results / "broken.png.png").exists()


def test_a_csv_gets_labels_and_a_bad_row_costs_only_itself(
    full_server: Server, tmp_path: Path
) -> None:
    """Other columns stay; an empty text has an error instead of a label."""
    table = tmp_path / "texts.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        rows = [("id", "text"), ("1", "今天真开心，谢谢大家！"), ("2", "  "), ("3", "好难过，想哭")]
        csv.writer(file).writerows(rows)
    done = command("sentiment", table, "--url", full_server.url)
    assert done.returncode == 1, done.stderr
    assert "2 of 3 texts classified" in done.stderr
    with (tmp_path / "texts.emotion.csv").open(encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file))
    assert [answer["id"] for answer in answers] == ["1", "2", "3"]
    assert [answer["error"] for answer in answers] == ["", "text_empty", ""]
    assert all(answer["label"] for answer in answers if not answer["error"])


@pytest.mark.slow
def test_without_a_server_the_models_are_loaded_for_the_command(tmp_path: Path) -> None:
    """And are gone when it ends, also where a setting of the shell is wrong for them."""
    repository = tmp_path / "models"
    shutil.copytree(ROOT / "model_repo" / "emotion", repository / "emotion")
    environment = {"PADDLEPOOL_MODEL_REPOSITORY": str(repository), "PADDLEPOOL_API_KEYS": "k"}
    done = command("sentiment", "今天真开心！", "--local", environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("happy    快乐")
    left = [each for each in processes() if str(repository).encode() in each]
    assert left == []
    environment["PADDLEPOOL_MODEL_REPOSITORY"] = str(tmp_path / "absent")
    done = command("sentiment", "今天真开心！", "--local", environment=environment)
    assert done.returncode == 1
    assert "there is no model repository at" in done.stderr.splitlines()[-1]


def processes() -> list[bytes]:
    """The environment of every process of ours."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found.append(each.read_bytes())
    return found

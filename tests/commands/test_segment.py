"""`paddlepool segment`: which pictures it takes, and how it stops."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from app.cli import main
from app.commands import segment
from app.contracts.errors import InvalidParameter
from paddlepool_client import Client

HEADERS = {
    "content-type": "image/png",
    "x-width": "1",
    "x-height": "1",
    "x-foreground-top": "0",
    "x-foreground-left": "0",
    "x-foreground-width": "1",
    "x-foreground-height": "1",
    "x-model": "u2netp@1",
    "x-predictor": "onednn",
}


class Server:
    """Answers every picture with the same bytes; `before` is called with each request's number."""

    def __init__(
        self, before: Callable[[int], httpx.Response | None] = lambda number: None
    ) -> None:
        self._before = before
        self._lock = threading.Lock()
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self.asked += 1
            number = self.asked
        return self._before(number) or httpx.Response(200, headers=HEADERS, content=b"a cut-out")

    def segment(self, *arguments: object) -> int:
        parser = argparse.ArgumentParser()
        segment.configure(parser)
        connect = partial(Client, transport=httpx.MockTransport(self))
        return segment.run(parser.parse_args([*map(str, arguments)]), connect=connect)


def photos(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a picture")
    return directory


def found(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and path.name != segment.NOTE
    }


def test_results_are_not_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`segment . -o cutouts`: the second run finds nothing to do, however the paths are written."""
    monkeypatch.chdir(photos(tmp_path, "a.jpg", "sub/b.jpg", "cutouts.png", "folder.jpg/c.jpg"))
    server = Server()
    assert server.segment(".", "-o", "cutouts") == 0
    results = {"a.jpg.png", "sub/b.jpg.png", "cutouts.png.png", "folder.jpg/c.jpg.png"}
    assert found(tmp_path / "cutouts") == results
    assert server.segment(tmp_path, "-o", tmp_path / "sub" / ".." / "cutouts") == 0
    assert server.asked == 4
    assert found(tmp_path / "cutouts") == results
    assert capsys.readouterr().out.splitlines()[0] == "4 of 4 pictures in cutouts"


def test_results_may_lie_above_the_pictures(tmp_path: Path) -> None:
    """Nothing is passed over then."""
    photos(tmp_path / "new", "a.jpg")
    assert Server().segment(tmp_path / "new", "-o", tmp_path) == 0
    assert found(tmp_path) == {"new/a.jpg", "a.jpg.png"}


def test_results_among_the_pictures_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody could tell them apart in the next run."""
    photos(tmp_path, "a.jpg")
    assert main(["segment", str(tmp_path), "-o", f"{tmp_path}/."]) == 1
    assert "the results need another directory" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", ["0", "-1", "65", "many"])
def test_jobs_have_limits(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are named, and what was received."""
    with pytest.raises(SystemExit) as ended:
        main(["segment", ".", "-o", "cutouts", "--jobs", jobs])
    assert ended.value.code == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line.endswith(f"argument --jobs: must be 1 to 64, received '{jobs}'")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("while_it", ["answers", "asks to come back"])
def test_ctrl_c_leaves_the_rest_to_the_next_run(
    while_it: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has begun is finished, what waits is not begun, what is to be repeated is given up."""
    names = [f"{number:03}.jpg" for number in range(200)]
    photos(tmp_path / "in", *names)

    def interrupt(number: int) -> httpx.Response | None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
        busy = number >= 3 and while_it == "asks to come back"
        return httpx.Response(503, headers={"retry-after": "30"}) if busy else None

    server = Server(interrupt)
    assert server.segment(tmp_path / "in", "-o", tmp_path / "out", "--jobs", 1) == 130
    said = capsys.readouterr()
    done = found(tmp_path / "out")
    assert 2 <= len(done) < 200
    assert all(name.endswith(".jpg.png") for name in done)
    assert said.out.strip() == f"{len(done)} of 200 pictures in {tmp_path / 'out'}"
    assert "interrupted; the same command goes on with the rest" in said.err
    again = Server()
    assert again.segment(tmp_path / "in", "-o", tmp_path / "out", "--jobs", 8) == 0
    assert again.asked == 200 - len(done)
    assert len(found(tmp_path / "out")) == 200


def test_a_refused_picture_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, and the exit code tells."""
    photos(tmp_path / "in", "a.jpg", "b.jpg")
    server = Server(lambda number: httpx.Response(422, json={"code": "x"}) if number == 1 else None)
    assert server.segment(tmp_path / "in", "-o", tmp_path / "out", "--jobs", 1) == 1
    said = capsys.readouterr()
    assert "a.jpg: 422 x" in said.err
    assert said.out.strip() == f"1 of 2 pictures in {tmp_path / 'out'}"


def test_frame_and_background_are_asked_for_as_given(tmp_path: Path) -> None:
    """Each option goes to the server under its own name; one that is left out does not."""
    asked: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        return httpx.Response(200, headers=HEADERS, content=b"a cut-out")

    parser = argparse.ArgumentParser()
    segment.configure(parser)
    pictures = photos(tmp_path / "photos", "a.tif")
    given = {
        "--output": "composite",
        "--bg-blur": "2%",
        "--crop-margin": "10%",
        "--scale": "80%",
        "--position": "50% 100%",
        "--shadow": "drop",
    }
    arguments = [str(pictures), "-o", str(tmp_path / "out"), "--crop"]
    for name, value in given.items():
        arguments += [name, value]
    connect = partial(Client, transport=httpx.MockTransport(answer))
    assert segment.run(parser.parse_args(arguments), connect=connect) == 0
    wanted = {name[2:].replace("-", "_"): value for name, value in given.items()}
    assert asked == [wanted | {"format": "png", "crop": "true"}]


def test_results_of_other_options_are_not_taken_for_these(tmp_path: Path) -> None:
    """Masks beside cut-outs of the same names would look like a finished run."""
    pictures = photos(tmp_path / "photos", "cat.jpg")
    server = Server()
    assert server.segment(pictures, "-o", tmp_path / "out") == 0
    assert server.segment(pictures, "-o", tmp_path / "out", "--jobs", 2) == 0
    with pytest.raises(InvalidParameter, match=r'"output": "cutout".*"output": "mask"'):
        server.segment(pictures, "-o", tmp_path / "out", "--output", "mask")
    (tmp_path / "out" / segment.NOTE).write_text("half a no", "utf-8")
    with pytest.raises(InvalidParameter, match="other options: null"):
        server.segment(pictures, "-o", tmp_path / "out")
    assert server.asked == 1

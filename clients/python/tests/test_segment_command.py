"""`paddlepool segment`: which pictures it takes, and how it stops."""

from __future__ import annotations

import argparse
import io
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddlepool_client import ApiError, Client
from paddlepool_client.commands import segment
from paddlepool_client.commands.at_server import ONCE, with_address
from paddlepool_client.commands.errors import CommandError
from paddlepool_client.commands.main import main
from paddlepool_client.commands.pictures import NOTE

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


MODEL = {
    "name": "u2netp",
    "version": 1,
    "state": "READY",
    "reason": None,
    "task": "segment",
    "labels": None,
    "predictors": [
        {"name": "onednn", "ready": True, "reason": ""},
        {"name": "native", "ready": False, "reason": "not started"},
        {"name": "gpu", "ready": False, "reason": "cannot start: this build has no CUDA"},
    ],
}


class Server:
    """Answers every picture with the same bytes; `before` is called with each request's number."""

    def __init__(
        self, before: Callable[[int], httpx.Response | None] = lambda number: None
    ) -> None:
        self._before = before
        self._lock = threading.Lock()
        self.asked = 0
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            return httpx.Response(200, json={"models": [MODEL]})
        if request.method == "GET":  # whether anybody is there
            return httpx.Response(200, json={"ready": True})
        with self._lock:
            self.asked += 1
            self.requests.append(request)
            number = self.asked
        return self._before(number) or httpx.Response(200, headers=HEADERS, content=b"a cut-out")

    def segment(self, *arguments: object, **settings: Any) -> int:
        parser = argparse.ArgumentParser()
        segment.configure(parser)
        connect = partial(Client, transport=httpx.MockTransport(self), **settings)
        return segment.run(parser.parse_args([*map(str, arguments)]), connect=connect)


def photos(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a picture")
    return directory


def files_in(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and path.name != NOTE
    }


def test_results_are_not_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`segment . -o cutouts`: the second run finds nothing to do, however the paths are written."""
    monkeypatch.chdir(photos(tmp_path, "a.jpg", "sub/b.jpg", "cutouts.png", "folder.jpg/c.jpg"))
    server = Server()
    assert server.segment(".", "-o", "cutouts") == 0
    results = {"a.jpg.png", "sub/b.jpg.png", "cutouts.png", "folder.jpg/c.jpg.png"}
    assert files_in(tmp_path / "cutouts") == results
    assert server.segment(tmp_path, "-o", tmp_path / "sub" / ".." / "cutouts") == 0
    assert server.asked == 4
    assert files_in(tmp_path / "cutouts") == results
    assert capsys.readouterr().out.splitlines()[0] == "4 of 4 pictures in cutouts"


def test_results_of_other_runs_are_not_pictures(tmp_path: Path) -> None:
    """Neither directories of results with other options, nor what stands beside its picture."""
    photos(tmp_path, "a.jpg", "b.cutout.jpg", "masks.png")
    server = Server()
    assert server.segment(tmp_path / "a.jpg") == 0
    assert server.segment(tmp_path, "-o", tmp_path / "masks", "--output", "mask") == 0
    assert server.segment(tmp_path, "-o", tmp_path / "cutouts") == 0
    results = {"a.jpg.png", "b.cutout.jpg.png", "masks.png"}
    assert files_in(tmp_path / "masks") == files_in(tmp_path / "cutouts") == results
    assert server.segment(tmp_path / "masks", "-o", tmp_path / "of results") == 0  # asked for


def test_results_among_the_pictures_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody could tell them apart in the next run."""
    photos(tmp_path, "a.jpg")
    assert main(["segment", str(tmp_path), "-o", f"{tmp_path}/."]) == 1
    assert "the results need another directory" in capsys.readouterr().err


def test_a_picture_gets_its_result_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`segment photo.jpg`: named after the picture and what was made of it, and said."""
    monkeypatch.chdir(photos(tmp_path, "photo.jpg", "other.jpg"))
    server = Server()
    assert server.segment("photo.jpg") == 0
    assert capsys.readouterr().out == "photo.cutout.png\n"
    assert (tmp_path / "photo.cutout.png").read_bytes() == b"a cut-out"
    assert server.segment("photo.jpg", "-o", "there.webp", "--output", "mask") == 0
    assert server.segment("photo.jpg", "other.jpg", "-o", "both", "--bg-color", "red") == 0
    assert capsys.readouterr().out.splitlines() == ["there.webp", "2 of 2 pictures"]
    assert {"there.webp", "both/photo.jpg.png", "both/other.jpg.png"} <= files_in(tmp_path)
    queries = [dict(query.url.params) for query in server.requests]
    assert [(query["output"], query["format"]) for query in queries] == [
        ("cutout", "png"), ("mask", "webp"), *[("composite", "png")] * 2
    ]  # fmt: skip


def test_standard_input_becomes_standard_output(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`segment - < photo.jpg > cutout.png`; nothing else is written there."""
    server = Server()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a picture")))
    assert server.segment("-") == 0
    assert capfdbinary.readouterr().out == b"a cut-out"
    assert server.requests[0].content == b"a picture"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(CommandError, match="standard input has 0 bytes"):
        server.segment("-")


def test_a_picture_is_not_written_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be unreadable, and change how the terminal behaves."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(CommandError, match="use -o FILE"):
        Server().segment("-")


def test_every_parameter_goes_as_it_is_given(tmp_path: Path) -> None:
    photos(tmp_path, "photo.jpg", "beach.jpg")
    options = {
        "--size": "preview",
        "--refine": "none",
        "--threshold": "0.5",
        "--colours": "original",
        "--bg-fit": "contain",
        "--shadow": "drop",
        "--shadow-opacity": "40",
        "--crop-margin": "10%",
        "--scale": "80%",
        "--position": "50% 100%",
        "--model": "u2netp@1",
        "--predictor": "native",
        "--timeout-ms": "9000",
    }
    server = Server()
    arguments = [part for pair in options.items() for part in pair]
    background = ["--crop", "--bg-image", tmp_path / "beach.jpg"]
    assert server.segment(tmp_path / "photo.jpg", *arguments, *background) == 0
    [request] = server.requests
    wanted = {name[2:].replace("-", "_"): value for name, value in options.items()}
    queries = dict(request.url.params)
    assert queries == wanted | {"output": "composite", "format": "png", "crop": "true"}
    assert b'name="bg_image"; filename="bg_image"' in request.content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bg-image", "absent.jpg"], "--bg-image absent.jpg: No such file"),
        (["--url", "127.0.0.1:8000"], "no scheme; is it http://127.0.0.1:8000 ?"),
        (["--url", "ftp://host"], "--url ftp://host is not a valid address"),
        (["--url", "http://[::1"], r"--url http://\[::1 is not a valid address"),
        (["--url", "http://host:99999"], "--url http://host:99999 is not a valid address"),
        (["--api-key", "gehe\nim"], "in an HTTP header"),
        (["--model", "nobody"], "--model nobody: for this task the server has u2netp$"),
        (["--model", "u2netp@7"], "--model u2netp@7: for this task the server has u2netp@1$"),
        (["--predictor", "nobody"], "--instance-group nobody: there are gpu, native, onednn$"),
        (["--instance-group", "nobody"], "--instance-group nobody: there are gpu, native, onednn$"),
        (["--predictor", "gpu"], "--instance-group gpu cannot start: this build has no CUDA$"),
        (["-o", "out.gif"], "-o out.gif: results are PNG, WebP or JPEG, not '.gif'$"),
        (
            ["-o", "photos/a.jpg", "--format", "png"],
            "a.jpg is the picture; the result must be another file",
        ),
        (["photos", "-o", "out"], "photos is a directory; a directory must be the only argument"),
        (["absent.jpg"], "absent.jpg is neither a file nor a directory"),
        (["photos/b.jpg", "-o", "-"], "several pictures"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_every_picture_would_be_refused_for_is_said_before_the_first(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path, "photos/a.jpg", "photos/b.jpg")
    monkeypatch.chdir(tmp_path)
    server = Server()
    with pytest.raises(CommandError, match=message.replace("?", r"\?")):
        server.segment("photos/a.jpg", *arguments)
    assert server.asked == 0


@pytest.mark.parametrize("several", [False, True])
def test_a_refused_option_ends_the_run_once(several: bool, tmp_path: Path) -> None:
    pictures = photos(tmp_path / "in", "1.jpg", "2.jpg", "3.jpg")
    detail = "bg_color must be #rgb or a CSS colour name (in a query, # is written %23)"
    refused = httpx.Response(422, json={"code": "invalid_parameter", "detail": detail})
    options = ["--jobs", 1, "--bg-color", "#12"]
    source = pictures if several else pictures / "1.jpg"
    target = tmp_path / "out"
    with pytest.raises(CommandError, match=r"^bg_color must be .* CSS colour name, received '#12'"):
        Server(lambda number: refused).segment(source, "-o", target, *options)
    assert not target.is_file()
    assert not several or list(target.iterdir()) == []


def test_a_group_that_turns_out_not_to_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its reason is known to /info after the first request, and to no refusal."""
    group = {"name": "native", "ready": False, "reason": "not started"}
    monkeypatch.setitem(MODEL, "predictors", [group])

    def fail(number: int) -> httpx.Response:
        group["reason"] = "cannot start: no such library"
        return httpx.Response(422, json={"code": "group", "detail": "cannot start"})

    picture = photos(tmp_path, "a.jpg") / "a.jpg"
    with pytest.raises(CommandError, match=r"native cannot start: no such library$"):
        Server(fail).segment(picture, "--predictor", "native")
    assert "a.jpg: 422 group: cannot start" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["segment", "a.jpg"], ["sentiment", "好"]])
def test_where_no_server_is_one_line_says_what_to_do(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(photos(tmp_path, "a.jpg"))
    with socket.socket() as bound:  # bound and not listening: nobody else's, and it refuses
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert main([*command, "--url", url]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paddlepool-client {command[0]}: no server at {url} (")
    assert "`paddlepool serve`" in line
    assert "--local" in line


def test_an_error_shows_the_address_without_the_password() -> None:
    error = ApiError(429, {"code": "quota_exceeded"})
    shown = with_address("http://me:secret@host:8000/pool", error)
    assert shown == f"http://host:8000/pool: {error}"


def test_a_background_that_is_refused_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = [photos(tmp_path, name) / name for name in ("1.jpg", "2.jpg", "3.jpg", "notes.txt")]
    refusal = {"code": "unsupported_media_type", "detail": "bg_image: the file is in no format"}
    server = Server(lambda number: httpx.Response(415, json=refusal))
    with pytest.raises(CommandError, match=r"bg_image: .* no format; 0 of 3 pictures are done$"):
        server.segment(*pictures[:3], "--jobs", "1", "--bg-image", pictures[3])
    assert "1.jpg" not in capsys.readouterr().err


def test_a_server_that_goes_away_ends_the_run_once(tmp_path: Path) -> None:
    photos(tmp_path / "in", *(f"{number}.jpg" for number in range(50)))

    def leave(number: int) -> httpx.Response | None:
        if number > 2:
            raise httpx.ConnectError("refused")
        return None

    with pytest.raises(CommandError, match=r"no server at .*; 2 of 50 pictures are done"):
        Server(leave).segment(tmp_path / "in", "-o", tmp_path / "out", "--jobs", 1, retries=ONCE)
    assert len(files_in(tmp_path / "out")) == 2


@pytest.mark.parametrize("jobs", ["0", "-1", "65", "many"])
def test_jobs_have_limits(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    output = capsys.readouterr()
    done = files_in(tmp_path / "out")
    assert 2 <= len(done) < 200
    assert all(name.endswith(".jpg.png") for name in done)
    assert output.out.strip() == f"{len(done)} of 200 pictures in {tmp_path / 'out'}"
    assert "interrupted; run the same command again to continue" in output.err
    again = Server()
    assert again.segment(tmp_path / "in", "-o", tmp_path / "out", "--jobs", 8) == 0
    assert again.asked == 200 - len(done)
    assert len(files_in(tmp_path / "out")) == 200


def test_a_refused_picture_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "in", "a.jpg", "b.jpg")
    server = Server(lambda number: httpx.Response(422, json={"code": "x"}) if number == 1 else None)
    assert server.segment(tmp_path / "in", "-o", tmp_path / "out", "--jobs", 1) == 1
    output = capsys.readouterr()
    assert "a.jpg: 422 x" in output.err
    assert output.out.strip() == f"1 of 2 pictures in {tmp_path / 'out'}"


def test_results_of_other_options_are_not_taken_for_these(tmp_path: Path) -> None:
    """Masks beside cut-outs of the same names would look like a finished run."""
    pictures = photos(tmp_path / "photos", "cat.jpg")
    server = Server()
    assert server.segment(pictures, "-o", tmp_path / "out") == 0
    assert server.segment(pictures, "-o", tmp_path / "out", "--jobs", 2) == 0
    with pytest.raises(CommandError, match=r'"output": "cutout".*"output": "mask"'):
        server.segment(pictures, "-o", tmp_path / "out", "--output", "mask")
    (tmp_path / "out" / NOTE).write_text("half a no", "utf-8")
    with pytest.raises(CommandError, match="other options: null"):
        server.segment(pictures, "-o", tmp_path / "out")
    assert server.asked == 1
